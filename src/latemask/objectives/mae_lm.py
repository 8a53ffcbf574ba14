"""MAE-LM (Meng et al., ICLR 2024): the encoder sees visible tokens only, and a decoder of its own predicts.

It differs from late masking's `self` in what a [MASK] is, the row of <mask> in the word table that the encoder shares,
and in its input: the decoder's own positions are added to every slot, and then comes a norm. Our layers are pre-norm,
which learn sooner on short budgets.

B batch, V visible, M masked, R corrupted, P = M + R predicted, D width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from latemask.masking.masks import Masks
from latemask.objectives import OBJECTIVES, Flops
from latemask.objectives.costs import input_flops
from latemask.objectives.decoder_costs import DecoderCosts
from latemask.objectives.late import LateMasking, decoded, none_masked, some
from latemask.recipe import Recipe
from latemask.recipe.checks import out_of_range
from latemask.text.tokenizer import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class MaeLmOptions:
    """The decoder of MAE-LM (mae-lm only)."""

    layers: int = 4
    """Layers of the decoder, which is thrown away."""


@OBJECTIVES.register("mae-lm")
class MaeLm(LateMasking):
    """Late masking at a decoder whose [MASK]s are the row of <mask> in the word table."""

    section, Options = "mae_lm", MaeLmOptions
    called: dict[str, str] = {"layers": "decoder_layers"}  # noqa: RUF012
    card = "MAE-LM-style masking, the encoder saw only visible tokens"

    def problem(self, recipe: Recipe) -> str | None:
        """Some positions must be masked, by as many layers as one likes."""
        return none_masked(recipe) or out_of_range("mae_lm.layers", recipe.options.layers, "[1, 10000]")

    def batch(self, ids: np.ndarray, masks: Masks, vocabulary: Vocabulary, options: Any) -> dict[str, np.ndarray]:
        """As for late masking, and mask_ids [B, 1]: which word a [MASK] is."""
        mask_ids: np.ndarray = np.full((len(ids), 1), vocabulary.mask)
        return {**super().batch(ids, masks, vocabulary, options), "mask_ids": mask_ids}

    # The model

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        return {"decoder_layers": recipe.options.layers, "length": recipe.max_length}

    def add_weights(self, model: Any, settings: Any) -> None:
        """Add the decoder: nothing else is new."""
        from latemask.objectives.decoder import WholeDecoder

        encoder = settings.encoder
        shape = (settings.decoder_layers, encoder.hidden_size, encoder.num_attention_heads)
        model.decoder = WholeDecoder(*shape, settings.length)

    def start(self, model: Any) -> None:
        """As transformers draws the weights."""

    def start_from(self, model: Any, vocabulary: Vocabulary) -> None:
        """The row of <mask> is there already."""

    def start_as_a_word(self, model: Any, word: Tensor, vocabulary: Vocabulary) -> None:
        model.words[vocabulary.mask] = word

    def forward(  # type: ignore[override]
        self,
        model: Any,
        visible_ids: Tensor,
        visible_positions: Tensor,
        masked_positions: Tensor,
        mask_ids: Tensor,
        corrupted_slots: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Any:
        """Encode, join, predict."""
        from torch.nn import functional as F

        visible = model.encode(visible_ids, visible_positions)
        masks = model.family.widened(model.encoder, F.embedding(mask_ids, model.words))
        states = decoded(model, visible, masks, visible_positions, masked_positions, some(corrupted_slots))
        return model.predict(states, labels)

    def layers_run_whole(self, model: Any) -> int | None:
        return None

    def fill_batch(self, ids: Tensor, is_mask: Tensor) -> dict[str, Tensor]:
        return {**super().fill_batch(ids, is_mask), "mask_ids": ids[is_mask].view(len(ids), -1)[:, :1]}

    # The cost

    def flops(self, recipe: Recipe, pruned: bool = True) -> Flops:
        """As late masking, and a <mask> a row, where words are narrower than the layers."""
        flops = super().flops(recipe, pruned)
        return replace(flops, decoder=flops.decoder + input_flops(recipe, 1))

    def decoder(self, recipe: Recipe) -> DecoderCosts:
        return DecoderCosts(recipe, "self", recipe.options.layers, "absolute")

    def added_weights(self, recipe: Recipe) -> int:
        return self.decoder(recipe).weights()

    # Words

    def words(self, recipe: Recipe) -> list[str]:
        return [f"decoder {recipe.options.layers}"]

    def where(self, recipe: Recipe) -> str:
        layers = recipe.options.layers
        return f"[MASK]s join a decoder of {layers} layer{'s' if layers > 1 else ''} as words"
