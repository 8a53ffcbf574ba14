"""ESM-2, an encoder of proteins: RoBERTa with norms before attention and feed-forward, rotary positions or a table of
them, and a rescaling of words by the share of <mask>s among them (token_dropout)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from latemask.families import FAMILIES, Family, LayerFacts, Places, StockHead, split_heads
from latemask.families.rotary import ONE_KIND, Rotary, rotated, start_near, start_passing
from latemask.ground.errors import UserError
from latemask.recipe import EncoderRecipe
from latemask.text.tokenizer import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

_ROTARY = "rotary"
_ROUNDED = 2e-3  # more than half precision makes of a frequency


@FAMILIES.register("esm")
class Esm(Rotary):
    """ESM-2, and ESM-1b with its table of positions."""

    model_type = "esm"
    stock_head = StockHead(bias="lm_head.bias")
    facts = LayerFacts(kept_wide=4, kept_by_keys=4)
    untrained = ("contact_head",)

    def weights(self, encoder: EncoderRecipe, max_length: int) -> int:
        """Count the norm at the end, but not the head for contacts: it is not trained."""
        return super().weights(encoder, max_length) + 2 * encoder.width

    def config(self, encoder: EncoderRecipe, vocabulary: Vocabulary) -> Any:
        from transformers import AutoConfig

        return AutoConfig.for_model(
            self.model_type,
            **self.usual_settings(encoder, vocabulary),
            mask_token_id=vocabulary.mask,
            position_embedding_type=_ROTARY,
            rope_theta=encoder.rotary_base,
            max_position_embeddings=encoder.max_length,
            layer_norm_eps=1e-5,
            emb_layer_norm_before=False,
            token_dropout=True,
            hidden_dropout_prob=encoder.dropout,
            attention_probs_dropout_prob=encoder.dropout,
        )

    def start_near(self, layer: Any) -> None:
        attention = layer.attention.self
        start_near(attention.query.weight, attention.key.weight, attention.attention_head_size)

    def start_passing(self, layer: Any, turn: Tensor) -> None:
        attention = layer.attention
        start_passing(attention.self.value.weight, attention.output.dense.weight, turn, _head_width(layer))

    def check(self, config: Any) -> None:
        """Refuse ESMFold, and a config that lacks the ids that the embeddings go by."""
        super().check(config)
        if config.is_folding_model:
            raise UserError("this ESM is ESMFold (is_folding_model in config.json), which folds and predicts no words")
        needed = ["pad_token_id", *(["mask_token_id"] if config.token_dropout else [])]
        if lacking := [name for name in needed if getattr(config, name) is None]:
            raise UserError(f"this ESM's config.json has no {lacking[0]}, and its embeddings go by it")

    def longest(self, config: Any) -> int:
        """Leave out the rows of a table of positions that no position uses."""
        unused = 0 if config.position_embedding_type == _ROTARY else config.pad_token_id + 1
        return config.max_position_embeddings - unused

    def shape(self, config: Any) -> dict[str, Any]:
        return {**super().shape(config), "rotary_base": float(config.rope_theta)}

    def stretch(self, config: Any, longest: int, rotary_base: float | None) -> None:
        if config.position_embedding_type == _ROTARY:
            super().stretch(config, longest, rotary_base)
        else:
            Family.stretch(self, config, longest, rotary_base)

    def turn_by(self, config: Any, base: float) -> None:
        config.rope_theta = base

    def settle(self, encoder: Any) -> None:
        """Frequencies come with the weights, rounded as they once were; those of another base do not."""
        import torch

        if (rotary := encoder.rotary_embeddings) is not None:
            exact, _ = rotary.compute_default_rope_parameters(encoder.config)
            exact = exact.to(rotary.inv_freq)
            if not torch.allclose(rotary.inv_freq, exact, rtol=_ROUNDED, atol=0):
                rotary.inv_freq.copy_(exact)

    def is_untrained(self, name: str) -> bool:
        """The frequencies of the rotation follow from the config, and checkpoints have them elsewhere or not at all."""
        return super().is_untrained(name) or name.endswith("inv_freq")

    def shorten(self, encoder: Any, layers: int) -> None:
        """Keep what the head for contacts makes of these layers."""
        from torch.nn import Parameter

        super().shorten(encoder, layers)
        contacts = encoder.contact_head
        contacts.in_features = contacts.regression.in_features = layers * encoder.config.num_attention_heads
        weight = contacts.regression.weight
        contacts.regression.weight = Parameter(weight[:, : contacts.in_features].detach().clone(), weight.requires_grad)

    def embed(
        self, encoder: Any, positions: Tensor, ids: Tensor | None = None, vectors: Tensor | None = None
    ) -> Tensor:
        """With token_dropout the stock embeddings rescale words by how many <mask>s they see: here those of `ids`.

        Vectors stay as they are.
        """
        positions = positions + encoder.config.pad_token_id + 1  # of the table, if there is one
        return encoder.embeddings(input_ids=ids, inputs_embeds=vectors, position_ids=positions)

    def mask_input(self, encoder: Any, mask: int) -> Tensor:
        """With token_dropout the stock embeddings put zeros in the place of <mask>."""
        vector = super().mask_input(encoder, mask)
        return vector.new_zeros(vector.shape) if encoder.config.token_dropout else vector

    def layers(self, encoder: Any) -> Any:
        return encoder.encoder.layer

    def places(self, encoder: Any, states: Tensor, positions: Tensor, ordered: bool = True) -> Places:
        if encoder.rotary_embeddings is None:
            return Family.places(self, encoder, states, positions, ordered)
        return Places(positions, {ONE_KIND: encoder.rotary_embeddings(states, positions)}, None, ordered)

    def stock(self, layer: Any, states: Tensor, places: Places) -> Tensor:
        return layer(states, position_embeddings=places.rotations.get(ONE_KIND))

    def before_attention(self, layer: Any, states: Tensor) -> Tensor:
        return layer.attention.LayerNorm(states)

    def queries(self, layer: Any, states: Tensor, places: Places) -> Tensor:
        return _turned(split_heads(layer.attention.self.query(states), _head_width(layer)), places)

    def keys_values(self, layer: Any, states: Tensor, places: Places) -> tuple[Tensor, Tensor]:
        attention, width = layer.attention.self, _head_width(layer)
        return _turned(split_heads(attention.key(states), width), places), split_heads(attention.value(states), width)

    def after_attention(self, layer: Any, attended: Tensor, states: Tensor) -> Tensor:
        return layer.feed_forward_chunk(layer.attention.output(attended, states))

    def attention_dropout(self, layer: Any) -> float:
        return layer.attention.self.dropout

    def final_norm(self, encoder: Any, states: Tensor) -> Tensor:
        return encoder.encoder.emb_layer_norm_after(states)


def _head_width(layer: Any) -> int:
    return layer.attention.self.attention_head_size


def _turned(heads: Tensor, places: Places) -> Tensor:
    """Rotate queries or keys, unless positions come from a table."""
    return rotated(heads, places.rotations[ONE_KIND]) if places.rotations else heads
