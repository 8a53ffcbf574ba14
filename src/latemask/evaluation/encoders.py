"""ENCODER on a command line → an encoder that can be given a task's head.

A run folder, an exported folder, any Hugging Face folder or Hub id; or `random:X`, the never-trained control, where X
is a recipe, a run or a folder.
"""

from __future__ import annotations

import atexit
import copy
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModel, AutoModelForSequenceClassification, AutoModelForTokenClassification
from transformers import set_seed as set_all_seeds

from latemask.evaluation.identity import RANDOM, encoder_checksum
from latemask.evaluation.tasks import Kind, Task
from latemask.exporting import write_stock
from latemask.ground.console import one_line, printable, say
from latemask.ground.errors import UserError
from latemask.ground.files import json_digest
from latemask.model.load import is_ours, model_type
from latemask.model.stock import complete_recipe, stock_config
from latemask.recipe import FAMILIES, Recipe, find_recipe, load_recipe
from latemask.run_folder import RunFolder
from latemask.text.builtin import BuiltinReader
from latemask.text.tokenizer import fill_vocabulary, load_tokenizer, tokenizer_digest, train_tokenizer, vocabulary_of

_HUB_FILES = ["*.json", "*.txt", "*.model", "model*.safetensors"]
# What a config notes of where it comes from, which makes no other architecture.
_ORIGIN = ("_name_or_path", "architectures", "dtype", "transformers_version")
# Stock encoders that we fine-tune and cannot open, whose positions are counted from behind the padding id.
_COUNTED_FROM_PADDING = ("xlm-roberta-xl", "longformer")


@dataclass(frozen=True)
class Encoder:
    """An encoder and its tokenizer. `folder` is None for weights that nobody trained."""

    name: str
    folder: Path | None
    config: Any
    tokenizer: Any
    checksum: str

    @property
    def is_random(self) -> bool:
        """Whether its weights are drawn, by the seed of each run."""
        return self.folder is None

    @property
    def width(self) -> int:
        """Hidden size."""
        return int(self.config.hidden_size)

    @property
    def longest(self) -> int:
        """The longest input it takes, in tokens."""
        return longest_input(self.config, self.tokenizer)

    @property
    def lasting_name(self) -> str | None:
        """What it can be opened by later: a folder, or an id on the Hub; None for what goes with this process."""
        if self.folder is None:
            return None
        given, at = Path(self.name), self.folder.resolve()
        if not given.exists():
            return self.name
        return str(at) if at.is_relative_to(given.resolve()) else None  # a run may be exported into a folder aside

    @property
    def architecture(self) -> str:
        """A digest that encoders share if they differ in weights and tokenizer alone."""
        # Written and read once: a config that was just made holds arguments that its file does not.
        config = type(self.config).from_dict(json.loads(self.config.to_json_string())).to_dict()
        return json_digest({name: value for name, value in config.items() if name not in _ORIGIN})

    def tokenizer_for(self, kind: Kind) -> Any:
        """Return the tokenizer; for a tagger one that takes words as words inside a text, not as texts of their own."""
        before = self.tokenizer.backend_tokenizer.pre_tokenizer
        if kind != "tagging" or not isinstance(before, ByteLevel) or before.add_prefix_space:
            return self.tokenizer
        tokenizer = copy.deepcopy(self.tokenizer)
        tokenizer.backend_tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=True, use_regex=before.use_regex)
        return tokenizer

    def with_head(self, task: Task, seed: int) -> Any:
        """Return the stock model for a task; `seed` draws its head, and all of it where nothing was trained."""
        if task.kind == "regression":
            return self._build(AutoModelForSequenceClassification, seed, num_labels=1, problem_type="regression")
        ids = {name: number for number, name in enumerate(task.labels)}
        labels = {"num_labels": len(ids), "id2label": dict(enumerate(task.labels)), "label2id": ids}
        if task.kind == "tagging":
            return self._build(AutoModelForTokenClassification, seed, **labels)
        labels["problem_type"] = f"{'multi' if task.kind == 'multilabel' else 'single'}_label_classification"
        return self._build(AutoModelForSequenceClassification, seed, **labels)

    def plain(self, seed: int = 0) -> Any:
        """Return the encoder alone."""
        return self._build(AutoModel, seed)

    def skeleton(self) -> Any:
        """Return the encoder alone, with names and shapes and no weights: it takes neither memory nor time."""
        with torch.device("meta"):
            return _or_say(self.name, lambda: AutoModel.from_config(copy.deepcopy(self.config)))

    def untrained(self) -> Encoder:
        """Return the same architecture with weights that nobody trained."""
        return _untrained(f"{RANDOM}{self.name}", self.config, self.tokenizer)

    def _build(self, auto_class: Any, seed: int, **settings: Any) -> Any:
        set_all_seeds(seed)
        if self.folder is None:
            config = type(self.config).from_dict({**self.config.to_dict(), **settings})
            return _or_say(self.name, lambda: auto_class.from_config(config))
        return load_whole(auto_class, self.folder, self.name, **settings)


def longest_input(config: Any, tokenizer: Any) -> int:
    """Return the most tokens that a stock encoder takes."""
    positions = int(getattr(config, "max_position_embeddings", 0) or 2**31)
    if config.model_type in FAMILIES.names():
        positions = FAMILIES[config.model_type].longest(config)
    elif config.model_type in _COUNTED_FROM_PADDING:
        positions -= config.pad_token_id + 1
    return max(1, min(positions, int(min(tokenizer.model_max_length, 2**31))))


def load_whole(auto_class: Any, folder: Path, name: str, with_head: bool = False, **settings: Any) -> Any:
    """Load a stock model from safetensors; weights that are not in the file are refused, but for a new head's."""
    settings |= {"trust_remote_code": False, "use_safetensors": True, "dtype": torch.float32}
    settings["output_loading_info"] = True
    model, info = _or_say(name, lambda: auto_class.from_pretrained(str(folder), **settings))
    body = f"{model.base_model_prefix}." if hasattr(model, model.base_model_prefix) else ""
    missing = sorted(key for key in info["missing_keys"] if with_head or key.startswith(body))
    if missing := [key for key in missing if with_head or "pooler" not in key]:  # encoders come without a pooler
        raise UserError(
            f"the weights of '{printable(name)}' do not fit its config: {len(missing)} are missing, "
            f"{printable(missing[0])} for one"
        )
    return model


def _or_say(name: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:  # transformers and safetensors raise many kinds for a damaged file
        raise UserError(f"the encoder '{printable(name)}' cannot be loaded: {one_line(error)}") from None


def open_encoders(given: Sequence[str], tokenizer: str | None = None) -> list[Encoder]:
    """Open encoders by what a user calls them; `tokenizer` is for `random:` ones.

    Without it, one that has none takes that of the first trained encoder, so that the two can be compared.
    """
    given = [name if name == "/" else name.rstrip("/") for name in given]
    if doubled := [name for name in given if list(given).count(name) > 1]:
        raise UserError(f"the encoder '{printable(doubled[0])}' is given twice")
    if tokenizer is not None and not any(name.startswith(RANDOM) for name in given):
        raise UserError("--tokenizer is for random: encoders; a trained one has its own")
    trained = {name: _trained(name) for name in given if not name.startswith(RANDOM)}
    shared = next((encoder.tokenizer for encoder in trained.values()), None)
    return [trained[name] if name in trained else _random(name, tokenizer, shared) for name in given]


def controls_for(encoders: Sequence[Encoder]) -> list[Encoder]:
    """Return a never-trained control for each architecture that was trained and has none among the encoders."""
    found: list[Encoder] = []
    for encoder in encoders:
        controls = [other for other in (*encoders, *found) if other.is_random]
        known = {other.architecture for other in controls} | {other.name for other in controls}
        if not encoder.is_random and not {encoder.architecture, f"{RANDOM}{encoder.name}"} & known:
            found.append(encoder.untrained())
    return found


def _trained(given: str) -> Encoder:
    folder = _folder(given)
    config, tokenizer = encoder_config(given, str(folder)), load_tokenizer(folder)
    refuse_larger(given, config, tokenizer)
    return Encoder(given, folder, config, tokenizer, encoder_checksum(folder))


def encoder_config(given: str, folder: str) -> Any:
    """Read the config of a text encoder, or say that it is something else."""
    config = stock_config(folder)
    is_text = hasattr(config, "hidden_size") and getattr(config, "vocab_size", None)
    if not is_text or getattr(config, "is_encoder_decoder", False) or "t5" in config.model_type:
        raise UserError(f"'{printable(given)}' holds a '{config.model_type}' model, which is no text encoder")
    head = (config.architectures or [""])[0]
    if head.endswith(("ForSequenceClassification", "ForTokenClassification")):
        raise UserError(
            f"'{printable(given)}' holds a fine-tuned {head}; give the encoder it was made from, "
            "or save its encoder alone (model.base_model.save_pretrained)"
        )
    return config


def refuse_larger(given: str, config: Any, tokenizer: Any) -> None:
    """A piece that has no vector cannot be read."""
    if len(tokenizer) > config.vocab_size:
        raise UserError(
            f"the tokenizer of '{printable(given)}' has {len(tokenizer):,} pieces and its encoder "
            f"only {config.vocab_size:,}: they do not belong together"
        )


def _folder(given: str) -> Path:
    path = Path(given)
    if not path.exists():
        return from_hub(given)
    if not path.is_dir():
        raise UserError(f"{printable(given)} is a file, not an encoder's folder")
    run = RunFolder(path)
    if (run.model / "config.json").is_file() and not is_ours(run.model):
        raise UserError(f"{printable(given)} holds a fine-tuned model; give the encoder it was made from")
    is_run = run.recipe_file.is_file() or run.model.is_dir() or run.checkpoints.is_dir()
    if not is_run and model_type(path) and not is_ours(path):
        return path
    if run.is_finished() and (run.encoder / "config.json").is_file():
        return run.encoder
    aside = tempfile.mkdtemp(prefix="latemask-")
    atexit.register(shutil.rmtree, aside, ignore_errors=True)
    out = Path(aside) / "encoder"
    write_stock(path, out)
    return out


def from_hub(given: str) -> Path:
    """Fetch a model's files, without its code or anything pickled."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(given, allow_patterns=_HUB_FILES))
    except Exception as error:  # whatever the Hub's client raises, also for what is no id at all
        reason = f"not a folder here, and not to be had from the Hub ({one_line(error, 120)})"
        raise UserError(f"no encoder at '{printable(given)}': {reason}") from None


def _random(given: str, tokenizer: str | None, shared: Any) -> Encoder:
    name = given.removeprefix(RANDOM)
    if not name:
        raise UserError("random: needs a name: a recipe, a run or an encoder's folder")
    if (Path(name) / "config.json").is_file() and not is_ours(Path(name)):
        if tokenizer is not None:
            raise UserError(f"--tokenizer: '{name}' has its own")
        return _untrained(given, encoder_config(given, name), load_tokenizer(name))
    if Path(name).is_dir() and not (Path(name) / "recipe.yaml").is_file():
        raise UserError(f"{printable(given)}: the folder holds neither a run nor an encoder")
    run = RunFolder(Path(name) if Path(name).is_dir() else Path(name).parent)
    recipe = load_recipe(run.recipe_file if Path(name).is_dir() else find_recipe(name))
    found = _tokenizer_for(given, recipe, run, tokenizer, shared)
    vocabulary = vocabulary_of(found)
    wanted = complete_recipe(recipe, vocabulary).encoder
    if wanted.init is not None:
        return _untrained(given, stock_config(wanted.init), found)
    return _untrained(given, FAMILIES[wanted.family].config(wanted, vocabulary), found)


def _untrained(given: str, config: Any, tokenizer: Any) -> Encoder:
    refuse_larger(given, config, tokenizer)
    encoder = Encoder(given, None, config, tokenizer, "")
    parts = encoder.architecture + tokenizer_digest(tokenizer)
    return replace(encoder, checksum=hashlib.sha256(parts.encode()).hexdigest())


def _tokenizer_for(given: str, recipe: Recipe, run: RunFolder, tokenizer: str | None, shared: Any) -> Any:
    if tokenizer is not None:  # of a run, of an encoder or of a data folder
        folders = [Path(tokenizer) / inside for inside in ("", "tokenizer", "encoder", "model")]
        return load_tokenizer(next((at for at in folders if (at / "tokenizer.json").is_file()), tokenizer))
    if run.recipe_file.is_file() and run.record:
        return load_tokenizer(run.tokenizer_folder(run.model))
    if shared is not None:
        return shared
    say(
        f"{printable(given)} comes without a tokenizer: one is trained on the builtin text. "
        "To compare with an encoder, take its own: --tokenizer ENCODER"
    )
    texts = [document.text for document in BuiltinReader().run()]
    vocab_size = recipe.encoder.vocab_size
    return train_tokenizer(texts, vocab_size) if vocab_size else fill_vocabulary(texts, None)
