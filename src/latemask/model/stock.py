"""Stock encoders from folders and the Hub: read, checked, opened by their family. No code of strangers is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from latemask.families import FAMILIES, Family
from latemask.ground.errors import UserError
from latemask.recipe import EncoderRecipe, Recipe, spelled_out
from latemask.text.tokenizer import VOCABULARY_MULTIPLE, Vocabulary


def family_of(config: Any) -> Family:
    """Return the family of an encoder's config, or say which there are."""
    if config.model_type not in FAMILIES.names():
        names = ", ".join(sorted(FAMILIES))
        raise UserError(f"latemask cannot open a '{config.model_type}' encoder; it can: {names}")
    family: Family = FAMILIES[config.model_type]
    family.check(config)
    return family


def stock_config(folder_or_id: str) -> Any:
    """Read the config of an existing encoder."""
    from transformers import AutoConfig

    return _or_say(folder_or_id, lambda: AutoConfig.from_pretrained(folder_or_id, trust_remote_code=False))


def load_encoder(folder_or_id: str) -> Any:
    """Load an encoder from safetensors in a folder or on the Hub."""
    import torch
    from transformers import AutoModel

    family = family_of(stock_config(folder_or_id))
    settings = {"trust_remote_code": False, "use_safetensors": True, "dtype": torch.float32, **family.without_pooler}
    return _or_say(folder_or_id, lambda: AutoModel.from_pretrained(folder_or_id, **settings))


def _or_say(folder_or_id: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:  # transformers and safetensors raise many kinds for "not there" and "damaged"
        path = Path(folder_or_id)
        if (path / "encoder" / "config.json").is_file():
            message = f"no encoder at '{path}' (did you mean '{path / 'encoder'}'?)"
        elif not path.is_dir():
            message = f"no encoder at '{path}': not a folder here, and not reachable on the Hub"
        else:
            message = f"the encoder in '{path}' cannot be read: {' '.join(str(error).split())[:200]}"
        raise UserError(message) from None


def checkpoint_shape(encoder: EncoderRecipe, length: int) -> EncoderRecipe:
    """Return the recipe of an existing encoder; `init_std` stays, it is for the weights that are new."""
    assert encoder.init is not None
    config = stock_config(encoder.init)
    family = family_of(config)
    if (longest := family.longest(config)) < length:
        raise UserError(f"the encoder at '{encoder.init}' takes {longest} tokens at most; lower length from {length}")
    return replace(encoder, **family.shape(config))


def complete_recipe(recipe: Recipe, vocabulary: Vocabulary, known: EncoderRecipe | None = None) -> Recipe:
    """Fill in what the data or a checkpoint decide, so that what is saved is what ran.

    `known` is what a run that goes on has written down: the encoder it began with may be gone.
    """
    encoder = recipe.encoder
    if encoder.init is not None and known is not None and known.init == encoder.init:
        encoder = replace(known, init_std=encoder.init_std)
    elif encoder.init is not None:
        encoder = checkpoint_shape(encoder, recipe.length)
    if encoder.vocab_size is not None and encoder.vocab_size < vocabulary.size:
        smaller = encoder.vocab_size // VOCABULARY_MULTIPLE * VOCABULARY_MULTIPLE
        advice = f"--vocab-size {smaller}, or change encoder.vocab_size"
        raise UserError(
            f"the data's tokenizer has {vocabulary.size} pieces and the encoder {encoder.vocab_size}; "
            f"prepare the data with {f'--tokenizer {encoder.init}' if encoder.init else advice}"
        )
    return spelled_out(replace(recipe, encoder=encoder), vocabulary.size)
