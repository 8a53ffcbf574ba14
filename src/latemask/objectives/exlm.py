"""ExLM-style: every [MASK] becomes several states, and the loss sums over all ways to emit the hidden tokens in order.

After Zheng et al. (ICML 2025); `late-exlm`, whose copies join late, is ours. docs/neighbours.md has what differs.

B batch, V visible, M masked, T = M + 2 targets (start, the masked tokens, end), k copies, N = kT slots, S = V + N,
D width, E width of the word table, W vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from latemask.families import FAMILIES
from latemask.families.rotary import Rotary
from latemask.ground.errors import UserError
from latemask.masking.masks import Masks
from latemask.objectives import OBJECTIVES, Flops, Objective
from latemask.objectives.copy_costs import (
    ENDS,
    emission_flops,
    heads_of,
    joined_flops,
    joined_kept,
    lattice_kept,
    transition_flops,
    whole_flops,
    whole_kept,
)
from latemask.objectives.costs import linear
from latemask.recipe import Recipe
from latemask.text.tokenizer import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

_MOST_COPIES = 64


@dataclass(frozen=True)
class Exlm:
    """How hidden tokens are expanded (ExLM-style masking only)."""

    copies: int = 4
    """How many states every hidden token has."""
    heads: int | None = None
    """Heads of the transitions between states; must divide the width, by default as many as attention has."""


@dataclass(frozen=True)
class LateExlm:
    """How hidden tokens are expanded, and where they join (late ExLM-style masking only)."""

    copies: int = 2
    """How many states every hidden token has."""
    heads: int | None = None
    """Heads of the transitions between states; must divide the width, by default as many as attention has."""
    layers: int = 2
    """How many of the encoder's last layers they join."""


class Expanding(Objective):
    """Hidden tokens as several states each, transitions between them, and a loss over all paths through them."""

    finish = "early"
    mask_note = """ This run never
showed the encoder its mask token, so `fill-mask` pipelines do not apply."""

    def problem(self, recipe: Recipe) -> str | None:
        """Every predicted position is hidden, and copies are told apart by rotation."""
        encoder, options, section = recipe.encoder, recipe.options, self.section
        if recipe.mask.random or recipe.mask.keep:
            return (
                f"mask.random and mask.keep are not for {recipe.objective}: a path has states for hidden tokens alone, "
                "in their order"
            )
        if not 1 <= options.copies <= _MOST_COPIES:
            return f"{section}.copies is {options.copies}; it must be between 1 and {_MOST_COPIES}"
        if not _is_known(recipe):
            return None
        if not isinstance(FAMILIES[encoder.family], Rotary):
            has = ", ".join(sorted(name for name, family in FAMILIES.items() if isinstance(family, Rotary)))
            return (
                f"{recipe.objective} tells copies apart by rotary positions: {has} have them, {encoder.family} has not"
            )
        if (heads := heads_of(recipe)) < 1 or encoder.width % heads:
            return f"{section}.heads {heads} does not divide encoder.width {encoder.width}"
        return None

    # The batch

    def batch(self, ids: np.ndarray, masks: Masks, vocabulary: Vocabulary, options: Any) -> dict[str, np.ndarray]:
        """Hidden positions are not among the visible; start and end are expanded as they are.

        visible_ids, visible_positions [B, V]; expanded_positions [B, T], where the start stands at <s> and the end
        behind the row; ends [B, 2], what start and end emit; labels [B, M].
        """
        assert not masks.corrupted.size
        rows, length = ids.shape
        start, end = np.zeros((rows, 1), np.int64), np.full((rows, 1), length, np.int64)
        return {
            "visible_ids": np.take_along_axis(masks.ids, masks.visible, axis=1),
            "visible_positions": masks.visible,
            "expanded_positions": np.concatenate([start, masks.masked, end], axis=1),
            "ends": np.tile(np.array([[vocabulary.bos, vocabulary.eos]], np.int64), (rows, 1)),
            "labels": np.take_along_axis(ids, masks.masked, axis=1),
        }

    # The model

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        options = recipe.options
        return {"copies": options.copies, "transition_heads": options.heads, "length": recipe.max_length}

    def add_weights(self, model: Any, settings: Any) -> None:
        """Add the vectors of [MASK], start and end, and the transitions."""
        import torch

        from latemask.objectives.lattice import Transitions

        width = settings.encoder.hidden_size
        somewhere = torch.zeros(1, 1)
        if not model.family.places(model.encoder, somewhere[..., None], somewhere.long()).rotations:
            raise UserError("ExLM tells copies apart by rotary positions, and this encoder has a table of positions")
        heads = settings.transition_heads or settings.encoder.num_attention_heads
        model.mask_vector = torch.nn.Parameter(torch.empty(model.words.shape[1]))
        model.end_vectors = torch.nn.Parameter(torch.empty(ENDS, model.words.shape[1]))
        model.transitions = Transitions(width, heads, settings.length, settings.copies)

    def start(self, model: Any) -> None:
        """Draw the vectors."""
        for vectors in (model.mask_vector, model.end_vectors):
            vectors.normal_(std=model.config.initializer_range)

    def start_from(self, model: Any, vocabulary: Vocabulary) -> None:
        """Take what the encoder reads in the place of <mask>."""
        self.start_as_a_word(model, model.family.mask_input(model.encoder, vocabulary.mask), vocabulary)

    def start_as_a_word(self, model: Any, word: Tensor, vocabulary: Vocabulary) -> None:
        """Start and end begin as <s> and </s>."""
        model.mask_vector.copy_(word)
        model.end_vectors.copy_(model.words[[vocabulary.bos, vocabulary.eos]])

    def left_behind(self, weights: dict[str, Tensor], words: str, mask: int) -> dict[str, Tensor]:
        """The [MASK] vector becomes the row of <mask>, which nobody trained."""
        added = ("mask_vector", "end_vectors", "transitions.")
        kept = {name: tensor for name, tensor in weights.items() if not name.startswith(added)}
        kept[words] = kept[words].clone()
        kept[words][mask] = weights["mask_vector"]
        return kept

    def forward(
        self,
        model: Any,
        visible_ids: Tensor,
        visible_positions: Tensor,
        expanded_positions: Tensor,
        ends: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Any:
        """Encode with copies, find steps and emissions, sum over all paths.

        In training the loss is that of all targets together, a path summed over, for each of them. A model that is
        judged says the mean cross-entropy of the masked tokens, each by itself: what other objectives say.
        """
        import torch

        from latemask.objectives.lattice import mixed_logits, path_sums, shares_of_slots

        states = self.states(model, visible_ids, visible_positions, expanded_positions)
        steps = model.transitions(states, expanded_positions)
        targets = expanded_positions.shape[1]
        if labels is None:
            return model.Output(logits=mixed_logits(model, states, shares_of_slots(steps, targets)[:, 1:-1]))
        if not model.training:
            found = model.log_probabilities(states, labels).transpose(1, 2)
            losses = -(shares_of_slots(steps, targets)[:, 1:-1] + found).logsumexp(2)
            return model.Output(loss=losses.mean(1) if model.gives_row_losses else losses.mean())
        assert ends is not None
        tokens = torch.cat((ends[:, :1], labels, ends[:, 1:]), dim=1)
        return model.Output(loss=-path_sums(model.log_probabilities(states, tokens), steps).mean() / targets)

    @abstractmethod
    def states(self, model: Any, ids: Tensor, positions: Tensor, expanded: Tensor) -> Tensor:
        """Return the states of all slots [B, N, D] for visible tokens [B, V] and expanded positions [B, T]."""

    def fill_batch(self, ids: Tensor, is_mask: Tensor) -> dict[str, Tensor]:
        import torch

        positions = ids.new_ones(ids.shape).cumsum(1) - 1
        masked = positions[is_mask].view(len(ids), -1)
        return {
            "visible_ids": ids[~is_mask].view(len(ids), -1),
            "visible_positions": positions[~is_mask].view(len(ids), -1),
            "expanded_positions": torch.cat((positions[:, :1], masked, positions[:, -1:] + 1), dim=1),
        }

    # The cost

    def flops(self, recipe: Recipe, pruned: bool = True) -> Flops:
        """Transitions count as a decoder; the head works at every slot."""
        return Flops(self.layers_flops(recipe, pruned), transition_flops(recipe), emission_flops(recipe))

    @abstractmethod
    def layers_flops(self, recipe: Recipe, pruned: bool) -> float:
        """Count the layers."""

    def added_weights(self, recipe: Recipe) -> int:
        d, heads = recipe.encoder.width, heads_of(recipe)
        vectors = (1 + ENDS) * (recipe.encoder.embedding_width or d)
        places = (recipe.max_length + 1 + recipe.options.copies) * d
        return vectors + places + 2 * linear(2 * d, d) + linear(2 * d, heads)

    def added_matrices(self, recipe: Recipe) -> list[tuple[int, int, int]]:
        d = recipe.encoder.width
        return [(2, 2 * d, d), (1, 2 * d, heads_of(recipe))]

    def kept_numbers(self, recipe: Recipe, scores: bool) -> float:
        """Words and positions, the layers, and of every pair of slots what each head says, and all together."""
        words = 2 * recipe.counts.visible * recipe.encoder.width
        return words + self.layers_kept(recipe, scores) + lattice_kept(recipe)

    @abstractmethod
    def layers_kept(self, recipe: Recipe, scores: bool) -> float:
        """Count what the layers keep."""


@OBJECTIVES.register("exlm")
class EarlyExlm(Expanding):
    """The copies stand in the encoder's input, and everything sees everything."""

    section, Options = "exlm", Exlm
    called: dict[str, str] = {"heads": "transition_heads"}  # noqa: RUF012
    card = "ExLM-style masked language modelling, every [MASK] as several states in the encoder's input"

    def states(self, model: Any, ids: Tensor, positions: Tensor, expanded: Tensor) -> Tensor:
        from latemask.objectives.copies import JoinedCopies

        joined = JoinedCopies(model, model.config.encoder.num_hidden_layers, expanded.shape[1])
        return joined.run_whole(model.encode(ids, positions, 0), positions, expanded)

    def layers_flops(self, recipe: Recipe, pruned: bool) -> float:
        return whole_flops(recipe)

    def layers_kept(self, recipe: Recipe, scores: bool) -> float:
        return whole_kept(recipe, scores)

    def words(self, recipe: Recipe) -> list[str]:
        return [f"{recipe.options.copies} copies"]

    def where(self, recipe: Recipe) -> str:
        return f"[MASK]s at the input, {recipe.options.copies} states each"


@OBJECTIVES.register("late-exlm")
class LateExlmMasking(Expanding):
    """The copies join the encoder's last layers; visible positions never see them."""

    section, Options = "late_exlm", LateExlm
    called: dict[str, str] = {"heads": "transition_heads", "layers": "join_layers"}  # noqa: RUF012
    card = "late ExLM-style masking, the encoder saw only visible tokens and every [MASK] joined as several states"

    def problem(self, recipe: Recipe) -> str | None:
        layers, encoder = recipe.options.layers, recipe.encoder
        if layers < 1:
            return f"late_exlm.layers is {layers}; at least one layer must see the [MASK]s"
        if _is_known(recipe) and layers > encoder.layers:
            return f"late_exlm.layers {layers} is more than encoder.layers {encoder.layers}"
        return super().problem(recipe)

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        return {**super().settings(recipe), "join_layers": recipe.options.layers}

    def layers_run_whole(self, model: Any) -> int:
        return int(model.config.encoder.num_hidden_layers - model.config.join_layers)

    def states(self, model: Any, ids: Tensor, positions: Tensor, expanded: Tensor) -> Tensor:
        from latemask.objectives.copies import JoinedCopies

        joined = JoinedCopies(model, model.config.join_layers, expanded.shape[1])
        return joined.run_late(model.encode(ids, positions, self.layers_run_whole(model)), positions, expanded)

    def layers_flops(self, recipe: Recipe, pruned: bool) -> float:
        return joined_flops(recipe, pruned)

    def layers_kept(self, recipe: Recipe, scores: bool) -> float:
        return joined_kept(recipe, scores)

    def words(self, recipe: Recipe) -> list[str]:
        return [f"{recipe.options.copies} copies", f"inside {recipe.options.layers}"]

    def where(self, recipe: Recipe) -> str:
        layers, copies = recipe.options.layers, recipe.options.copies
        return f"[MASK]s join inside, {layers} layer{'s' if layers > 1 else ''}, {copies} states each"


def _is_known(recipe: Recipe) -> bool:
    """Whether the encoder is what the recipe says; until it is opened, it is the checkpoint's."""
    return recipe.encoder.init is None or recipe.encoder.ffn_width is not None
