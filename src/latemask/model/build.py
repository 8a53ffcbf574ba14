"""Recipe + vocabulary → model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from transformers import AutoConfig

from latemask.ground.errors import UserError
from latemask.model.base import EncoderForPreTraining, stock_config
from latemask.model.early import EarlyMaskForPreTraining
from latemask.model.families import family_of
from latemask.model.late import LateMaskForPreTraining
from latemask.recipe import EncoderRecipe, Recipe, spelled_out
from latemask.text.tokenizer import VOCABULARY_MULTIPLE, Vocabulary

MODELS: dict[str, type[EncoderForPreTraining]] = {
    "late": LateMaskForPreTraining,
    "early": EarlyMaskForPreTraining,
}


def _rounded_down(vocab_size: int) -> int:
    """Return the largest size that `prepare` would not round up beyond `vocab_size`."""
    return vocab_size // VOCABULARY_MULTIPLE * VOCABULARY_MULTIPLE


def complete_recipe(recipe: Recipe, vocabulary: Vocabulary) -> Recipe:
    """Fill in what the data or a checkpoint decide, so that what is saved is what ran."""
    encoder = recipe.encoder
    if encoder.init is not None:
        encoder = checkpoint_shape(encoder, recipe.length)
    if encoder.vocab_size is not None and encoder.vocab_size < vocabulary.size:
        raise UserError(
            f"the data's tokenizer has {vocabulary.size} pieces and the encoder {encoder.vocab_size}; "
            + (
                f"prepare the data with --tokenizer {encoder.init}"
                if encoder.init
                else f"prepare the data with --vocab-size {_rounded_down(encoder.vocab_size)}, "
                "or change encoder.vocab_size"
            )
        )
    return spelled_out(replace(recipe, encoder=encoder), vocabulary.size)


def build_model(recipe: Recipe, vocabulary: Vocabulary) -> EncoderForPreTraining:
    """Build the model of a completed recipe."""
    settings = _join_settings(recipe)
    cls = MODELS[recipe.objective]
    if recipe.encoder.init is None:
        settings["initializer_range"] = recipe.encoder.init_std
        return cls(cls.config_class(encoder=encoder_config(recipe.encoder, vocabulary), **settings))
    if recipe.objective == "late":
        settings["mask_token_id"] = vocabulary.mask
    return cls.from_encoder(recipe.encoder.init, **settings)


def encoder_config(encoder: EncoderRecipe, vocabulary: Vocabulary) -> Any:
    """Return the stock config of a new encoder."""
    assert encoder.max_length is not None
    assert encoder.ffn_width is not None
    shape: dict[str, Any] = {
        "vocab_size": encoder.vocab_size,
        "hidden_size": encoder.width,
        "num_hidden_layers": encoder.layers,
        "num_attention_heads": encoder.heads,
        "intermediate_size": encoder.ffn_width,
        "initializer_range": encoder.init_std,
        "pad_token_id": vocabulary.pad,
        "bos_token_id": vocabulary.bos,
        "eos_token_id": vocabulary.eos,
    }
    if encoder.family == "modernbert":
        shape |= {
            "max_position_embeddings": encoder.max_length,
            "layer_types": ["full_attention"] * encoder.layers,
            "global_attn_every_n_layers": 1,  # the same in the words of transformers 4
            "global_rope_theta": encoder.rotary_base,
            "attention_dropout": encoder.dropout,
            "embedding_dropout": encoder.dropout,
            "mlp_dropout": encoder.dropout,
            "classifier_pooling": "mean",  # masks teach every position something, and the first one least
            "cls_token_id": vocabulary.bos,
            "sep_token_id": vocabulary.eos,
        }
    else:
        offset = 0 if encoder.family == "bert" else vocabulary.pad + 1
        shape |= {
            "max_position_embeddings": encoder.max_length + offset,
            "hidden_dropout_prob": encoder.dropout,
            "attention_probs_dropout_prob": encoder.dropout,
            "type_vocab_size": 2 if encoder.family == "bert" else 1,
        }
    config = AutoConfig.for_model(encoder.family, **shape)
    if encoder.family == "modernbert":
        config.global_rope_theta = encoder.rotary_base  # transformers 5 reads and forgets it; 4 needs it in the file
    return config


def _join_settings(recipe: Recipe) -> dict[str, Any]:
    if recipe.objective == "early":
        return {}
    return {
        "join": recipe.join.kind,
        "join_layers": recipe.join.layers,
        "two_way": recipe.join.two_way,
        "positions": recipe.join.positions,
        "length": recipe.max_length,
    }


def checkpoint_shape(encoder: EncoderRecipe, length: int) -> EncoderRecipe:
    """Return the recipe of an existing encoder."""
    assert encoder.init is not None
    config = stock_config(encoder.init)
    longest = family_of(config).longest(config)
    if longest < length:
        raise UserError(f"the encoder at '{encoder.init}' takes {longest} tokens at most; lower length from {length}")
    return replace(
        encoder,
        family=config.model_type,
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        ffn_width=config.intermediate_size,
        init_std=getattr(config, "initializer_range", encoder.init_std),
        rotary_base=_rotary_base(config, encoder.rotary_base),
        dropout=getattr(config, "hidden_dropout_prob", getattr(config, "mlp_dropout", 0.0)),
        max_length=longest,
        vocab_size=config.vocab_size,
    )


def _rotary_base(config: Any, default: float) -> float:
    """Return the base of the full-attention layers; families without rotary positions have none."""
    rotary = getattr(config, "rope_parameters", None) or {}
    return float(rotary.get("full_attention", {}).get("rope_theta", default))
