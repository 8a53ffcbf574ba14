"""A byte-level BPE tokenizer with RoBERTa's special tokens: trained, or any fast one taken from somewhere."""

from __future__ import annotations

import hashlib
import heapq
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from latemask.ground.errors import UserError
from latemask.ground.files import json_digest, write_json_atomically
from latemask.text.reading import content_hash
from latemask.text.words import words_of

if TYPE_CHECKING:
    from latemask.text.units import Units

# RoBERTa's ids: <s> 0, <pad> 1, </s> 2, <unk> 3; <mask> follows.
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
LARGEST_VOCABULARY = 2**24
SMALLEST_VOCABULARY = 256 + len(SPECIAL_TOKENS)  # every byte must have a piece
DEFAULT_VOCABULARY = 32768
VOCABULARY_MULTIPLE = 64  # matrix kernels are fastest where sizes are multiples of it

READ_PER_SAMPLED = 10  # reading is so much faster than training that this costs nothing, and spreads the sample

Normalization = Literal["nfc", "none"]


@dataclass(frozen=True)
class Vocabulary:
    """The ids that masking and models need to know."""

    size: int
    bos: int
    eos: int
    pad: int
    mask: int
    special: tuple[int, ...]
    words: bytes | None = field(default=None, compare=False, repr=False)
    """What each piece says of words (text/words.py), where a masking pattern needs it."""
    units: Units | None = field(default=None, compare=False, repr=False)
    """Collocations of the data, likewise."""

    @property
    def record(self) -> dict[str, Any]:
        """The ids alone, as a manifest has them."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.compare}


def train_tokenizer(texts: Iterable[str], vocab_size: int, normalize: Normalization = "nfc") -> Any:
    """Train byte-level BPE on `texts`; the result is a Hugging Face tokenizer, smaller where the texts hold less."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    if normalize == "nfc":  # the same character is the same bytes, however it was typed
        tokenizer.normalizer = normalizers.NFC()
    # A prefix space makes a word the same piece at the start of a text as inside it, and lets taggers pass words.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    *plain, mask = SPECIAL_TOKENS
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[*plain, AddedToken(mask, lstrip=True, special=True)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    _interruptibly(lambda unless_stopped: tokenizer.train_from_iterator(unless_stopped(texts), trainer))
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=True)
    names = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), SPECIAL_TOKENS, strict=True))
    # add_prefix_space again: transformers 4 sets the pre-tokenizer to what the config says.
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, cls_token="<s>", sep_token="</s>", add_prefix_space=True, **names
    )


def fill_vocabulary(texts: Sequence[str], vocab_size: int | None, normalize: Normalization = "nfc") -> Any:
    """Train a tokenizer of `vocab_size` pieces, rounded up to a multiple of 64, or refuse what the texts cannot fill.

    Without a size, it is 32,768 or as much as the texts fill.
    """
    wanted = -(-(vocab_size or DEFAULT_VOCABULARY) // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    tokenizer = train_tokenizer(texts, wanted, normalize)
    possible = len(tokenizer)
    usable = possible // VOCABULARY_MULTIPLE * VOCABULARY_MULTIPLE
    is_usable = usable >= SMALLEST_VOCABULARY
    if vocab_size is not None and possible < wanted:
        advice = f"pass --vocab-size {usable}, " if is_usable else ""
        raise UserError(
            f"the text does not fill a vocabulary of {wanted:,}, only one of {possible:,}: "
            f"{advice}leave --vocab-size away, or give more text"
        )
    return train_tokenizer(texts, usable, normalize) if possible < wanted and is_usable else tokenizer


def _interruptibly(work: Callable[[Callable[[Iterable[str]], Iterator[str]]], None]) -> None:
    """Run `work` in a thread: the library reads in one of its own, where Ctrl-C would wait for the end of the text."""
    stop = threading.Event()

    def unless_stopped(texts: Iterable[str]) -> Iterator[str]:
        for text in texts:
            if stop.is_set():
                raise KeyboardInterrupt
            yield text

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work, unless_stopped)
        try:
            while not wait([future], timeout=0.2).done:  # awake now and then: signals reach the main thread only then
                pass
        except BaseException:
            stop.set()
            raise
        future.result()


def load_tokenizer(folder_or_id: str | Path) -> Any:
    """Load a Hugging Face tokenizer from a folder or the Hub; no code of strangers is run."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder_or_id), trust_remote_code=False)
    except Exception as error:  # transformers raises many kinds for "not there" and "not a tokenizer"
        raise UserError(_no_tokenizer(Path(folder_or_id), str(error))) from None
    if type(tokenizer).__name__ == "EsmTokenizer":
        tokenizer = _fast_letters(tokenizer)
    if not tokenizer.is_fast:
        raise UserError(
            f"the tokenizer at '{folder_or_id}' has no fast version (tokenizer.json), which latemask needs: convert it "
            "with the tokenizers library, or give another"
        )
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # transformers makes one up where a folder has none
        raise UserError(_no_tokenizer(Path(folder_or_id), "it has no pieces"))
    return tokenizer


def _fast_letters(slow: Any) -> Any:
    """Return the fast version of ESM's tokenizer: transformers has none, and its pieces are letters and a few names."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pieces = slow.get_vocab()
    tokenizer = Tokenizer(models.WordLevel(pieces, unk_token=slow.unk_token))
    longest_first = "|".join(re.escape(piece) for piece in sorted(pieces, key=len, reverse=True))
    by_piece = pre_tokenizers.Split(Regex(longest_first), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), by_piece])
    frame = [(piece, pieces[piece]) for piece in (slow.cls_token, slow.eos_token)]
    (start, _), (end, _) = frame
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}", pair=f"{start} $A {end} $B {end}", special_tokens=frame
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        name_or_path=slow.name_or_path,
        model_input_names=list(slow.model_input_names),
        **slow.special_tokens_map,
    )


def _no_tokenizer(path: Path, reason: str) -> str:
    if "trust_remote_code" in reason:
        return (
            f"the tokenizer at '{path}' needs code of its own, and latemask runs no code of strangers: save it as a "
            "plain PreTrainedTokenizerFast (tokenizer.json, no auto_map)"
        )
    if not path.is_dir():
        return f"no tokenizer at '{path}': not a folder here, and not reachable on the Hub"
    for inside in ("tokenizer", "encoder"):
        if (path / inside / "tokenizer.json").is_file():
            return f"no tokenizer at '{path}' (did you mean '{path / inside}'?)"
    if not (path / "tokenizer.json").is_file():
        return f"no tokenizer at '{path}': the folder holds no tokenizer.json"
    return f"the tokenizer in '{path}' cannot be read: {' '.join(reason.split())[:200]}"


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """Read the ids off a tokenizer; BERT's [CLS], [SEP], [MASK] do as well as RoBERTa's names."""
    ids = {
        "bos": tokenizer.cls_token_id if tokenizer.cls_token_id is not None else tokenizer.bos_token_id,
        "eos": tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id,
        "pad": tokenizer.pad_token_id,
        "mask": tokenizer.mask_token_id,
    }
    if missing := [name for name, value in ids.items() if value is None]:
        where = f" in '{tokenizer.name_or_path}'" if tokenizer.name_or_path else ""
        raise UserError(
            f"the tokenizer{where} has no {' and no '.join(missing)} token, which an encoder's tokenizer has: give "
            "another, or add them to it (add_special_tokens)"
        )
    reserved = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}  # without a role
    return Vocabulary(size=len(tokenizer), special=tuple(sorted({*tokenizer.all_special_ids, *reserved})), **ids)


def words_in(tokenizer: Any) -> bytes | None:
    """Return what the pieces of a tokenizer say of words; None where they tell nothing."""
    vocabulary = vocabulary_of(tokenizer)
    return words_of(json.loads(tokenizer.backend_tokenizer.to_str()), vocabulary.size, vocabulary.special)


def tokenizer_digest(tokenizer: Any) -> str:
    """Return a checksum of a tokenizer, but for how it cuts and pads: every call with other settings changes that."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    return json_digest({name: value for name, value in content.items() if name not in ("truncation", "padding")})


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer so that current and older transformers open it."""
    tokenizer.save_pretrained(str(folder))
    # transformers 5 names a class that 4 does not know; both know this one.
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text("utf-8"))
    if config.get("tokenizer_class") == "TokenizersBackend":
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        config.pop("backend", None)
        config.setdefault("model_input_names", list(tokenizer.model_input_names))  # 4 would add token_type_ids
        write_json_atomically(path, config)


def copy_tokenizer(source: Path, folder: Path, max_length: int) -> None:
    """Copy a tokenizer beside a model, with the model's longest input written in."""
    for name in _FILES[:2]:
        if not (source / name).is_file():
            raise UserError(f"{source / name} is missing")
    for name in _FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    path = folder / "tokenizer_config.json"
    try:
        config = json.loads(path.read_text("utf-8"))
    except ValueError:
        raise UserError(f"{source / path.name} is damaged") from None
    write_json_atomically(path, {**config, "model_max_length": max_length})
    vocabulary_of(load_tokenizer(folder))  # a damaged one is noticed here, not by whoever opens the copy


@dataclass(frozen=True)
class TokenizerPlan:
    """Which tokenizer: one that is there, perhaps with new pieces, or one to train."""

    vocab_size: int | None
    given: str | None
    sample_bytes: int
    normalize: Normalization
    new_pieces: int | None = None

    @cached_property
    def reused(self) -> Any:
        """The tokenizer that is there already, or None."""
        if self.given is None:
            return None
        tokenizer = load_tokenizer(self.given)
        vocabulary_of(tokenizer)
        return tokenizer

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the tokenizer."""
        if self.given is None:
            new = {"vocab_size": self.vocab_size, "tokenizer_sample": self.sample_bytes, "normalize": self.normalize}
            return {"tokenizer": None, **new}
        content = self.reused.backend_tokenizer.to_str().encode("utf-8")
        found = {"tokenizer": {"path": self.given, "sha256": hashlib.sha256(content).hexdigest()}}
        more = {"new_pieces": self.new_pieces, "tokenizer_sample": self.sample_bytes}
        return found if self.new_pieces is None else {**found, **more}


def evenly_spread(sizes: Sequence[int], limit: int) -> list[int]:
    """Return which groups of pieces to sample from: all, or as many at even distances as make about `limit` bytes."""
    total = sum(sizes)
    if total <= limit:
        return list(range(len(sizes)))
    count = max(1, len(sizes) * limit // total)
    return [len(sizes) * number // count for number in range(count)]


def sample(texts: Iterable[str], sample_bytes: int) -> list[str]:
    """Return documents of `sample_bytes` in all, chosen by their content: whatever the order and the number.

    Those with the smallest hashes. The largest of them leave as smaller ones come, so memory is bounded.
    """
    kept: list[tuple[int, str]] = []
    size, limit = 0, 2**64
    for text in texts:
        content = text.encode("utf-8")
        if (number := content_hash(content, b"tokenizer")) >= limit:  # not the hash that chooses validation
            continue
        heapq.heappush(kept, (-number, text))
        size += len(content)
        while size > sample_bytes and len(kept) > 1:
            largest, left = heapq.heappop(kept)
            size, limit = size - len(left.encode("utf-8")), -largest
    return [text for _, text in sorted(kept, reverse=True)]
