"""ModernBERT and what is built like it (mmBERT, Ettin): pre-norm, rotary positions, gated feed-forward. Layers that see
a window of the row alternate with some that see all of it, or all do; both kinds have their own rotary base."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from latemask.families import FAMILIES, HeadShape, LayerFacts, Places, StockHead, split_heads
from latemask.families.rotary import Rotary, rotated, start_near, start_passing
from latemask.ground.errors import UserError
from latemask.recipe import EncoderRecipe
from latemask.text.tokenizer import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor


_GLOBAL, _LOCAL = "full_attention", "sliding_attention"


@FAMILIES.register("modernbert")
class ModernBert(Rotary):
    """ModernBERT: full attention in every layer, or windows in most."""

    model_type = "modernbert"
    options = frozenset({"window"})
    stock_head = StockHead("head.dense", "head.norm", "decoder")
    facts = LayerFacts(ffn_matrices=3, kept_states=10, kept_wide=4, kept_joined=0, kept_by_keys=5)
    fused: dict[str, int] = {"Wqkv": 3, "Wi": 2}  # noqa: RUF012
    without_pooler: dict[str, Any] = {}  # noqa: RUF012  (it has none)

    def weights(self, encoder: EncoderRecipe, max_length: int) -> int:
        """Count a family without biases, whose first layer has no norm before its attention."""
        d, f = encoder.width, encoder.ffn_width or 0
        return encoder.layers * (4 * d * d + 3 * d * f + 2 * d) + d

    def config(self, encoder: EncoderRecipe, vocabulary: Vocabulary) -> Any:
        from transformers import AutoConfig

        every = encoder.global_every if encoder.window else 1
        config = AutoConfig.for_model(
            self.model_type,
            **self.usual_settings(encoder, vocabulary),
            cls_token_id=vocabulary.bos,
            sep_token_id=vocabulary.eos,
            max_position_embeddings=encoder.max_length,
            layer_types=[_LOCAL if encoder.window and n % every else _GLOBAL for n in range(encoder.layers)],
            global_attn_every_n_layers=every,  # the same in the words of transformers 4
            **({"local_attention": 2 * encoder.window} if encoder.window else {}),
            global_rope_theta=encoder.rotary_base,
            attention_dropout=encoder.dropout,
            embedding_dropout=encoder.dropout,
            mlp_dropout=encoder.dropout,
            classifier_pooling="mean",  # masks teach every position something, and the first one least
        )
        config.global_rope_theta = encoder.rotary_base  # transformers 5 reads and forgets it; 4 needs it in the file
        return config

    def start_near(self, layer: Any) -> None:
        queries, keys, _ = layer.attn.Wqkv.weight.chunk(3)
        start_near(queries, keys, layer.attn.head_dim)

    def start_passing(self, layer: Any, turn: Tensor) -> None:
        *_, values = layer.attn.Wqkv.weight.chunk(3)
        start_passing(values, layer.attn.Wo.weight, turn, layer.attn.head_dim)

    def check(self, config: Any) -> None:
        """Refuse layers that do not alternate as our counts of FLOPs have them: one of so many sees the whole row."""
        super().check(config)
        kinds, every = config.layer_types, _global_every(config)
        if kinds != [_LOCAL if number % every else _GLOBAL for number in range(len(kinds))]:
            raise UserError(
                "this ModernBERT's layers see the whole row in no regular order (layer_types in config.json); latemask "
                "opens those where the first of every so many layers does"
            )

    def shape(self, config: Any) -> dict[str, Any]:
        """Add the windows, and the base of the rotary positions of layers that see the whole row."""
        rotary = getattr(config, "rope_parameters", None) or {}
        base = rotary.get(_GLOBAL, {}).get("rope_theta", config.default_theta["global"])
        windows = {"window": config.sliding_window if _LOCAL in config.layer_types else None}
        if windows["window"]:
            windows["global_every"] = _global_every(config)
        return {**super().shape(config), "dropout": config.mlp_dropout, "rotary_base": float(base), **windows}

    def turn_by(self, config: Any, base: float) -> None:
        """Of the layers that see the whole row; windows are short, and stay as they are."""
        config.rope_parameters[_GLOBAL]["rope_theta"] = config.global_rope_theta = base

    def head_shape(self, config: Any) -> HeadShape:
        return HeadShape(config.norm_eps, config.classifier_activation, tied=config.tie_word_embeddings)

    def config_with_head(self, config: Any) -> None:
        config.classifier_bias = config.decoder_bias = True
        config.sparse_prediction = False

    def shorten(self, encoder: Any, layers: int) -> None:
        """Forget the other layers' kinds of attention, too."""
        super().shorten(encoder, layers)
        encoder.config.layer_types = encoder.config.layer_types[:layers]

    def embed(
        self, encoder: Any, positions: Tensor, ids: Tensor | None = None, vectors: Tensor | None = None
    ) -> Tensor:
        return encoder.embeddings(input_ids=ids, inputs_embeds=vectors)

    def layers(self, encoder: Any) -> Any:
        return encoder.layers

    def places(self, encoder: Any, states: Tensor, positions: Tensor, ordered: bool = True) -> Places:
        """Cosines and sines of the positions, for layers of both kinds."""
        kinds = sorted(set(encoder.config.layer_types))
        return Places(positions, {kind: encoder.rotary_emb(states, positions, kind) for kind in kinds}, None, ordered)

    def runs_whole(self, layer: Any) -> bool:
        """A window counts positions, and the stock layer would count slots."""
        return self.window(layer) is None

    def stock(self, layer: Any, states: Tensor, places: Places) -> Tensor:
        return layer(states, position_embeddings=places.rotations[layer.attention_type])

    def window(self, layer: Any) -> int | None:
        return layer.config.sliding_window if layer.attention_type == _LOCAL else None

    def before_attention(self, layer: Any, states: Tensor) -> Tensor:
        return layer.attn_norm(states)

    def queries(self, layer: Any, states: Tensor, places: Places) -> Tensor:
        """Project with the first third of the stock layer's fused matrix, and rotate."""
        queries = _linear_rows(layer.attn.Wqkv, states, slice(None, states.shape[-1]))
        return rotated(split_heads(queries, layer.attn.head_dim), places.rotations[layer.attention_type])

    def keys_values(self, layer: Any, states: Tensor, places: Places) -> tuple[Tensor, Tensor]:
        """Project with the other two thirds, and rotate the keys."""
        keys, values = _linear_rows(layer.attn.Wqkv, states, slice(states.shape[-1], None)).chunk(2, dim=-1)
        turned = rotated(split_heads(keys, layer.attn.head_dim), places.rotations[layer.attention_type])
        return turned, split_heads(values, layer.attn.head_dim)

    def after_attention(self, layer: Any, attended: Tensor, states: Tensor) -> Tensor:
        states = states + layer.attn.out_drop(layer.attn.Wo(attended))
        return states + layer.mlp(layer.mlp_norm(states))

    def attention_dropout(self, layer: Any) -> float:
        return layer.attn.attention_dropout

    def final_norm(self, encoder: Any, states: Tensor) -> Tensor:
        return encoder.final_norm(states)


def _global_every(config: Any) -> int:
    """Return the distance between layers that see the whole row; the number of layers where only the first does."""
    others = [number for number, kind in enumerate(config.layer_types) if number and kind == _GLOBAL]
    return others[0] if others else max(1, len(config.layer_types))


def _linear_rows(linear: Any, states: Tensor, rows: slice) -> Tensor:
    from torch.nn import functional as F

    bias = None if linear.bias is None else linear.bias[rows]
    return F.linear(states, linear.weight[rows], bias)
