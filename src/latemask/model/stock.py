"""Stock encoders from folders and the Hub: read, checked, opened by their family. No code of strangers is run."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latemask.families import FAMILIES, Family
from latemask.families.refused import REFUSED, STRANGERS_CODE
from latemask.ground.errors import UserError
from latemask.model.load import is_ours, load_model
from latemask.recipe import EncoderRecipe, Recipe, spelled_out
from latemask.run_folder import RunFolder
from latemask.text.tokenizer import VOCABULARY_MULTIPLE, Vocabulary

if TYPE_CHECKING:
    from torch import Tensor


def family_of(config: Any) -> Family:
    """Return the family of an encoder's config, or say why there is none."""
    if config.model_type not in FAMILIES.names():
        if reason := REFUSED.get(config.model_type):
            raise UserError(f"latemask cannot open a '{config.model_type}' encoder: {reason}")
        names = ", ".join(sorted(FAMILIES))
        raise UserError(f"latemask cannot open a '{config.model_type}' encoder; it can: {names}")
    family: Family = FAMILIES[config.model_type]
    family.check(config)
    if getattr(config, "is_decoder", False):
        raise UserError(f"this '{config.model_type}' reads from left to right (is_decoder in config.json): no encoder")
    return family


def checkpoint_of(folder_or_id: str) -> str:
    """Return the folder of a run's newest model where a run is given, else what is given."""
    run = RunFolder(Path(folder_or_id))
    return str(run.newest_model()) if run.recipe_file.is_file() else folder_or_id


def tokenizer_of(folder_or_id: str) -> str:
    """Return where the tokenizer of an encoder is: with the data, where a run or its checkpoint has none beside it."""
    given = Path(folder_or_id)
    run = RunFolder(given)
    if run.recipe_file.is_file():
        return str(run.tokenizer_folder(run.newest_model()))
    above = RunFolder(given.parent.parent)
    if given.parent == above.checkpoints and above.recipe_file.is_file():
        return str(above.tokenizer_folder(given))
    return folder_or_id


def stock_config(folder_or_id: str) -> Any:
    """Read the config of an existing encoder; of a pre-training model of ours, that of its encoder."""
    from transformers import AutoConfig

    if Path(folder_or_id).is_file():  # of which transformers would read the config, and look for weights elsewhere
        raise UserError(f"'{folder_or_id}' is a file: give the folder with config.json and model.safetensors")
    if (Path(folder_or_id) / "config.json").is_file() and is_ours(Path(folder_or_id)):
        settings = dict(json.loads((Path(folder_or_id) / "config.json").read_text("utf-8"))["encoder"])
        return AutoConfig.for_model(settings.pop("model_type"), **settings)
    return _or_say(folder_or_id, lambda: AutoConfig.from_pretrained(folder_or_id, trust_remote_code=False))


@dataclass(frozen=True)
class StockModel:
    """An encoder that was trained, and what came with it."""

    encoder: Any
    head: dict[str, Tensor]
    """The parts of its head for masked language modelling, by our names; empty where it has none."""
    mask: Tensor | None = None
    """The [MASK] vector of a late model of ours, where it stands among words."""

    def give_head(self, head: Any) -> None:
        """Put the parts where they belong; what the stock head has not begins at zero."""
        import torch

        if not self.head:
            return
        with torch.no_grad():
            for name, tensor in head.named_parameters():
                tensor.copy_(self.head[name]) if name in self.head else tensor.zero_()


def stretched(config: Any, encoder: EncoderRecipe) -> None:
    """Let a config take inputs as long as a recipe's, and turn positions by its base."""
    family = family_of(config)
    family.stretch(config, max(encoder.max_length or 0, family.longest(config)), encoder.rotary_base)


def open_stock(folder_or_id: str, change: Callable[[Any], None] | None = None) -> StockModel:
    """Load an encoder, and its head if it has one, from safetensors in a folder or on the Hub; or a model of ours.

    `change` may change its config before.
    """
    if (Path(folder_or_id) / "config.json").is_file() and is_ours(Path(folder_or_id)):
        model = load_model(Path(folder_or_id), change)
        joins_as_a_word = getattr(model, "decoder", None) is None
        mask = getattr(model, "mask_vector", None) if joins_as_a_word else None
        return StockModel(model.encoder, dict(model.head.state_dict()), mask)
    import torch
    from transformers import AutoModelForMaskedLM

    config = stock_config(folder_or_id)
    family = family_of(config)
    if change:
        change(config)
    settings = {"trust_remote_code": False, "use_safetensors": True, "dtype": torch.float32, "config": config}
    settings |= {"output_loading_info": True, "ignore_mismatched_sizes": True}  # they are said below, by name
    load = partial(AutoModelForMaskedLM.from_pretrained, folder_or_id, **settings)
    stock, info = _or_say(folder_or_id, load)
    if changes := family.config_changes(info["unexpected_keys"]):
        config.update(changes)
        stock, info = _or_say(folder_or_id, load)
    if others := sorted(info["mismatched_keys"]):
        name, there, wanted = others[0]
        raise UserError(
            f"the weights in '{folder_or_id}' do not fit its config.json: {name} is {list(there)} there, and "
            f"{list(wanted)} by the config"
        )
    encoder, missing = stock.base_model, set(info["missing_keys"])
    body = f"{stock.base_model_prefix}."
    missing_inside = (name.removeprefix(body) for name in missing if name.startswith(body))
    lost = sorted(name for name in missing_inside if not family.is_untrained(name))
    if lost:
        raise UserError(
            f"the weights in '{folder_or_id}' do not fit its config.json: {len(lost)} are missing, {lost[0]} for one"
        )
    parts = head_parts(stock, family)
    is_there = not any(name in missing for name, _ in parts.values())
    return StockModel(encoder, {ours: tensor.detach() for ours, (_, tensor) in parts.items()} if is_there else {})


def head_parts(stock: Any, family: Family) -> dict[str, tuple[str, Tensor]]:
    """Return the weights of a stock …ForMaskedLM's head by our names, with theirs."""
    names = family.stock_head_of(stock.config)
    wanted = {"bias": names.bias or f"{names.words}.bias"}
    if not stock.config.tie_word_embeddings:
        wanted["words"] = f"{names.words}.weight"
    if not family.plain_head:
        modules = {"dense": names.dense, "norm": names.norm}
        wanted |= {f"{our}.{part}": f"{their}.{part}" for our, their in modules.items() for part in ("weight", "bias")}
    every_name = stock.named_parameters(remove_duplicate=False)  # of a bias that two modules share, too
    weights = {**dict(every_name), **dict(stock.named_buffers())}
    return {ours: (theirs, weights[theirs]) for ours, theirs in wanted.items() if theirs in weights}


def masked_language_model(model: Any) -> Any:
    """Return the stock …ForMaskedLM that computes what a model does with [MASK]s in its input."""
    import torch
    from transformers import AutoModelForMaskedLM

    config = copy.deepcopy(model.encoder.config)
    config.tie_word_embeddings = model.head.words is None
    model.family.config_with_head(config)
    stock = AutoModelForMaskedLM.from_config(config).eval()
    stock.base_model.load_state_dict(model.encoder.state_dict())
    parts, own = head_parts(stock, model.family), dict(model.head.state_dict())
    with torch.no_grad():
        if "norm.bias" in own and "norm.bias" not in parts:  # what it adds to every logit
            own["bias"] = own["bias"] + model.output_words @ own.pop("norm.bias")
        for name, tensor in own.items():
            parts[name][1].copy_(tensor)
    return stock


def _or_say(folder_or_id: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:  # transformers and safetensors raise many kinds for "not there" and "damaged"
        raise UserError(_why_it_cannot_be_read(folder_or_id, error)) from None


def _why_it_cannot_be_read(folder_or_id: str, error: Exception) -> str:
    """Say what is wrong with an encoder; transformers' own words are long, and about other things."""
    path = Path(folder_or_id)
    if (path / "encoder" / "config.json").is_file():
        return f"no encoder at '{path}' (did you mean '{path / 'encoder'}'?)"
    if not path.is_dir():
        return f"no encoder at '{path}': not a folder here, and not reachable on the Hub"
    if not (path / "config.json").is_file():
        return f"the encoder in '{path}' cannot be read: the folder holds no config.json"
    if kind := _kind_of_strangers(folder_or_id):
        return f"latemask cannot open the '{kind}' encoder at '{folder_or_id}': {STRANGERS_CODE}"
    if (kind := _settings_of(folder_or_id).get("model_type")) and not _is_known(kind):
        return f"the encoder in '{path}' is of a kind that this transformers does not know, '{kind}' (newer, perhaps)"
    has_weights = any(path.glob("*.safetensors"))
    if any(path.glob("*.bin")) and not has_weights:
        return (
            f"the weights in '{path}' are a pickle, which may run code and is never read; save them as safetensors "
            "where you trust them (transformers: model.save_pretrained)"
        )
    if not has_weights:
        return f"the encoder in '{path}' cannot be read: there are no weights (model.safetensors)"
    if "header" in str(error):
        return f"the encoder in '{path}' cannot be read: its weights are cut short or damaged; copy the file again"
    return f"the encoder in '{path}' cannot be read: {' '.join(str(error).split())[:200]}"


def _kind_of_strangers(folder_or_id: str) -> str | None:
    """Return what an encoder calls itself that transformers does not know and whose code would come with it."""
    settings = _settings_of(folder_or_id)
    kind = settings.get("model_type") or "nameless"
    return kind if "auto_map" in settings and not _is_known(kind) else None


def _is_known(kind: str) -> bool:
    from transformers import CONFIG_MAPPING

    return kind in CONFIG_MAPPING


def _settings_of(folder_or_id: str) -> dict[str, Any]:
    """Return what a config.json says; nothing where it is not there, or damaged: that is said elsewhere."""
    from transformers import PretrainedConfig

    try:
        settings, _ = PretrainedConfig.get_config_dict(folder_or_id)
    except Exception:
        return {}
    return dict(settings)


def checkpoint_shape(encoder: EncoderRecipe, length: int) -> EncoderRecipe:
    """Return the recipe of an existing encoder; `init_std` stays, it is for the weights that are new."""
    if not encoder.init:
        raise UserError("this recipe goes on with an encoder: say which, --encoder.init FOLDER (or a Hub id, or a run)")
    config = stock_config(checkpoint_of(encoder.init))
    family = family_of(config)
    try:
        stretched(config, replace(encoder, max_length=max(length, encoder.max_length or 0)))
    except UserError as error:
        raise UserError(f"the encoder at '{encoder.init}' {error}") from None
    return replace(encoder, **family.shape(config))


def complete_recipe(recipe: Recipe, vocabulary: Vocabulary, known: EncoderRecipe | None = None) -> Recipe:
    """Fill in what the data or a checkpoint decide, so that what is saved is what ran.

    `known` is what a run that goes on has written down: the encoder it began with may be gone.
    """
    encoder = recipe.encoder
    if encoder.init is not None and known is not None and known.init == encoder.init:
        if encoder.rotary_base not in (None, known.rotary_base):
            raise UserError(
                f"encoder.rotary_base {encoder.rotary_base:g}: what goes on with an encoder keeps its base, here "
                f"{known.rotary_base:g}; begin anew from the encoder, with the other base"
            )
        encoder = replace(known, init_std=encoder.init_std)
    elif encoder.init is not None:
        encoder = checkpoint_shape(encoder, recipe.length)
    if encoder.vocab_size is not None and encoder.vocab_size < vocabulary.size:
        smaller = encoder.vocab_size // VOCABULARY_MULTIPLE * VOCABULARY_MULTIPLE
        if encoder.init is None:
            raise UserError(
                f"the data's tokenizer has {vocabulary.size} pieces and the encoder {encoder.vocab_size}; "
                f"prepare the data with --vocab-size {smaller}, or change encoder.vocab_size"
            )
        rows = -(-vocabulary.size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE  # whether it may grow, a job finds out
        encoder = replace(encoder, vocab_size=rows)
    return spelled_out(replace(recipe, encoder=encoder), vocabulary.size)
