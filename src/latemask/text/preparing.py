"""`latemask prepare`: text → tokenizer + token shards + manifest.

A tokenizer is trained on a sample. Then the corpus is tokenized in tasks that depend on it alone: whatever the number
of workers, wherever they run and however often they are interrupted, the same bytes come out. The manifest is written
last: a folder without one is not finished.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from datatrove.utils.logging import logger as datatrove_logger

from latemask.ground.console import printable, say
from latemask.ground.errors import UserError
from latemask.text.adopting import adopt_shards
from latemask.text.cleaning import Cleaning, Dedup
from latemask.text.corpora import Builtin, Corpus, Files, HubDataset
from latemask.text.executors import Execution, Where, executor_options
from latemask.text.ngram_table import has_ngrams
from latemask.text.preparation import Preparation, interruptible
from latemask.text.prepared import MANIFEST, PreparedData, read_manifest
from latemask.text.sources import find_sources
from latemask.text.tokenizer import LARGEST_VOCABULARY, SMALLEST_VOCABULARY, Normalization, TokenizerPlan, words_in
from latemask.text.units import with_units, words_to_find
from latemask.text.workplace import FOLDER, RESULT, Workplace

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


def prepare(
    inputs: str | Path | Sequence[str | Path] = (),
    *,
    out: Path | None = None,
    builtin: bool = False,
    hf_dataset: str | None = None,
    hf_config: str | None = None,
    hf_split: str = "train",
    streaming: bool = False,
    format: Literal["txt", "jsonl", "csv", "tsv", "parquet", "arrow"] | None = None,
    text_field: str = "text",
    vocab_size: int | None = None,
    tokenizer: str | Path | None = None,
    extend: str | Path | None = None,
    new_pieces: int | None = None,
    tokenizer_sample: str = "200MB",
    normalize: Normalization = "nfc",
    validation: float = 0.01,
    min_chars: int = 0,
    language: str | None = None,
    dedup: Dedup | None = None,
    no_ngrams: bool = False,
    pmi: int | None = None,
    workers: int | None = None,
    executor: Where = "local",
    executor_option: Sequence[str] = (),
    adopt: Path | None = None,
    strict: bool = False,
    overwrite: bool = False,
) -> PreparedData:
    """Turn text into a tokenizer and token shards.

    Args:
        inputs: Files, folders, glob patterns and URLs (s3://, hf://, …) of .txt (documents parted by an empty line),
            .jsonl, .csv, .tsv, .parquet and .arrow, plain or .gz, .zst, .bz2, .xz.
        out: Folder to write; a finished one with the same settings is left as it is, an interrupted one goes on.
        builtin: Use the documentation of Python and of installed packages instead of files.
        hf_dataset: Use a dataset of the Hugging Face Hub instead of files: its id, or a local folder.
        hf_config: Which configuration of the dataset, if it has several.
        hf_split: Which split of the dataset.
        streaming: Read the dataset over the network instead of downloading it first.
        format: What the files are, whatever their names say.
        text_field: Field or column that holds the text.
        vocab_size: Pieces of the byte-level BPE tokenizer to train, rounded up to a multiple of 64; by default 32768,
            or as many as the text fills.
        tokenizer: Folder or Hub id of a tokenizer to use instead of training one.
        extend: Folder or Hub id of an encoder, or a tokenizer, to which words of this text are added as new pieces;
            pretrain with encoder.init goes on with that encoder, whose word table grows.
        new_pieces: How many words, those that save most tokens; more where that makes a multiple of 64 of all pieces.
        tokenizer_sample: How much text, evenly spread, the tokenizer is trained on, or new pieces are chosen from.
        normalize: Bring characters into Unicode's composed form (nfc), or leave them as they are (none).
        validation: Share of the documents held out for validation (at least one; 0 holds out none).
        min_chars: Drop documents with fewer characters.
        language: Drop documents in other languages than this code, or these: en or en,de.
        dedup: Drop documents that are the same as another (exact) or nearly so (minhash).
        no_ngrams: Keep no hashes of the text's 13-grams, by which finetune and grammar tell what of a test was seen.
        pmi: Find so many collocations of 2 to 5 words in the training text, and keep them with it, for mask.pattern
            pmi; also in data that are prepared already.
        workers: Processes and threads to use; by default all cores. The result does not depend on it.
        executor: Where to run: on this machine, or on a cluster by datatrove's Slurm or Ray executor.
        executor_option: NAME=VALUE for datatrove's Slurm or Ray executor, like partition=cpu.
        adopt: Instead of all this: check token shards that datatrove wrote into this folder, and make them usable.
        strict: Stop at a line that cannot be used instead of skipping it.
        overwrite: Replace a folder that was prepared with other settings.
    """
    _check_combination({name for name, value in locals().items() if value not in (_DEFAULTS[name], [], ())})
    for option, place in (("--tokenizer", tokenizer), ("--extend", extend)):
        if place is not None and not str(place):
            raise UserError(f"{option} is empty: give a folder or a Hub id")
    inputs = [inputs] if isinstance(inputs, (str, Path)) else inputs
    _check_numbers(vocab_size if tokenizer is None else None, new_pieces, pmi, validation, min_chars, workers)
    if adopt:
        found = adopt_shards(Path(adopt), str(tokenizer) if tokenizer else None, validation, overwrite)
        return _with_units(found, pmi, overwrite)
    if out is None:
        raise UserError("say where the data goes: --out")
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file, not a folder")
    datatrove_logger.disable("datatrove")  # what our user needs to know, we say
    execution = Execution(executor, workers, executor_options(executor, executor_option))
    execution.check()
    corpus: Corpus
    if hf_dataset:
        corpus = HubDataset(hf_dataset, hf_config, hf_split, streaming, text_field)
    elif builtin:
        corpus = Builtin(out / FOLDER)
    else:
        sources, root = find_sources(inputs, format), out.resolve()
        for source in sources:
            if source.is_local and Path(source.location).resolve().is_relative_to(root):
                raise UserError(f"{source.label} lies in --out {out}, where the result goes; choose another --out")
        corpus = Files(sources, text_field)
    base = extend or tokenizer
    plan = TokenizerPlan(vocab_size, str(base) if base else None, _bytes(tokenizer_sample), normalize, new_pieces)
    cleaning = Cleaning(min_chars, language, dedup)
    preparation = Preparation(out, corpus, cleaning, plan, validation, strict, keeps_ngrams=not no_ngrams)
    if done := _already_done(out, preparation, overwrite):
        return _with_units(done, pmi, overwrite)
    _refuse_foreign(out, overwrite)
    if pmi is not None and plan.reused is not None:
        words_to_find(words_in(plan.reused), f"the tokenizer at '{plan.given}'")  # before all the work
    return _with_units(preparation.run(execution), pmi, overwrite)


def _with_units(data: PreparedData, pmi: int | None, overwrite: bool) -> PreparedData:
    if pmi is None:
        return data
    try:
        with interruptible():
            return with_units(data, pmi, overwrite)
    except MemoryError:
        raise UserError(f"out of memory while looking for units; {data.folder} is whole without them") from None


_DEFAULTS = {name: parameter.default for name, parameter in inspect.signature(prepare).parameters.items()}
_CHOICES = {"inputs": "INPUT", "builtin": "--builtin", "hf_dataset": "--hf-dataset", "adopt": "--adopt"}
_ONLY_WITH = {
    "hf_config": {"hf_dataset"},
    "hf_split": {"hf_dataset"},
    "streaming": {"hf_dataset"},
    "format": {"inputs"},
    "text_field": {"inputs", "hf_dataset"},
}
_WITH_ADOPT = {"adopt", "tokenizer", "validation", "overwrite", "pmi"}
_OF_A_NEW_TOKENIZER = ("vocab_size", "tokenizer_sample", "normalize")
_NOT_WITH_EXTEND = ("vocab_size", "tokenizer", "normalize")


def _check_combination(given: set[str]) -> None:
    """Refuse what would be ignored; `given` is what differs from its default."""
    chosen = [name for name in _CHOICES if name in given]
    if len(chosen) != 1:
        what = " or ".join(_CHOICES[name] for name in chosen) if chosen else "nothing"
        raise UserError(
            "say what to prepare: INPUT files, folders or patterns, or one of --builtin, --hf-dataset, --adopt "
            f"(given: {what})"
        )
    for name in sorted(given):
        option = f"--{name.replace('_', '-')}"
        if chosen == ["adopt"] and name not in _WITH_ADOPT:
            raise UserError(f"{option} does not go with --adopt, which takes shards as they are")
        if name in _ONLY_WITH and chosen[0] not in _ONLY_WITH[name]:
            raise UserError(f"{option} does not go with {_CHOICES[chosen[0]]}")
        if name in _OF_A_NEW_TOKENIZER and "tokenizer" in given and "extend" not in given:
            raise UserError(f"{option} does not go with --tokenizer, which is used as it is")
    _check_extension(given)


def _check_extension(given: set[str]) -> None:
    """A tokenizer is extended by a number of pieces, and is neither trained nor used as it is."""
    if "extend" not in given and "new_pieces" not in given:
        return
    if "extend" not in given:
        raise UserError("--new-pieces says how many to add: say to which tokenizer, with --extend FOLDER")
    if "new_pieces" not in given:
        raise UserError("--extend adds pieces to a tokenizer: say how many, with --new-pieces")
    for name in _NOT_WITH_EXTEND:
        if name in given:
            raise UserError(f"--{name.replace('_', '-')} does not go with --extend, which adds to a tokenizer")


def _check_numbers(
    vocab_size: int | None,
    new_pieces: int | None,
    pmi: int | None,
    validation: float,
    min_chars: int,
    workers: int | None,
) -> None:
    if vocab_size is not None and vocab_size < SMALLEST_VOCABULARY:
        raise UserError(
            f"--vocab-size {vocab_size} is too small: byte-level BPE needs {SMALLEST_VOCABULARY} pieces at least "
            "(256 bytes and the special tokens)"
        )
    if vocab_size is not None and vocab_size > LARGEST_VOCABULARY:
        raise UserError(f"--vocab-size {vocab_size} is too large: {LARGEST_VOCABULARY:,} pieces at most")
    if new_pieces is not None and new_pieces < 1:
        raise UserError(f"--new-pieces {new_pieces}: one at least")
    if pmi is not None and pmi < 1:
        raise UserError(f"--pmi {pmi}: one at least")
    if not 0 <= validation < 1:
        raise UserError(f"--validation {validation} is not a share in [0, 1)")
    if min_chars < 0:
        raise UserError(f"--min-chars {min_chars} is less than nothing")
    if workers is not None and workers < 1:
        raise UserError(f"--workers {workers}: one at least")


def _bytes(text: str) -> int:
    """Return the number of bytes that `200MB` or `1.5 GB` means."""
    found = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([KMG]?)B?", str(text).strip().upper())
    if not found or float(found[1]) <= 0:
        raise UserError(f"--tokenizer-sample {text} is not a size like 200MB or 1.5GB")
    return int(float(found[1]) * _UNITS[found[2]])


def _refuse_foreign(out: Path, overwrite: bool) -> None:
    """Leave a folder alone that holds anything but a preparation: what is in the way would be removed."""
    if not out.is_dir():
        return
    if foreign := next(Workplace(out).foreign_files(), None):
        raise UserError(
            f"{out} is not empty and was not made by latemask prepare (it holds '{printable(foreign)}'); "
            "choose another --out"
        )
    is_left_over = any((out / name).exists() for name in RESULT) and not (out / MANIFEST).is_file()
    if is_left_over and not Workplace(out).is_begun() and not overwrite:
        raise UserError(f"{out} holds shards without a manifest; choose another --out or pass --overwrite")


def _already_done(out: Path, preparation: Preparation, overwrite: bool) -> PreparedData | None:
    """Return the data if it is there; refuse a folder that holds something else."""
    try:
        manifest = read_manifest(out)
        if manifest is None:
            return None
        before, settings = manifest["settings"], preparation.settings
        if changed := sorted(key for key in {**settings, **before} if before.get(key) != settings.get(key)):
            raise UserError(
                f"{out} was prepared with other settings ({', '.join(changed)}); choose another --out or pass "
                "--overwrite"
            )
        lacks_ngrams = preparation.keeps_ngrams and not has_ngrams(manifest)
        if lacks_ngrams and overwrite:
            return None
        data = PreparedData.open(out)
    except UserError:
        if overwrite:  # also what is damaged is a reason to begin again
            return None
        raise
    Workplace(out).remove()
    but = " (it keeps no n-grams; --overwrite prepares it again with them)" if lacks_ngrams else ""
    say(f"{out} is already prepared with these settings: nothing to do{but}")
    return data
