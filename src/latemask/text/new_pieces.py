"""New words for a tokenizer that is there: chosen by the tokens that they save in a text, and put behind the old ones.

A word is what the tokenizer's own pre-tokenizer hands to its model, with the mark of the space before it, so that a
new piece stands for the same text as the pieces did that spelled it. Old ids stay. Of the models,

- BPE takes a word that is in its vocabulary as it is (`ignore_merges`), and merges all others as before. Merges that
  lead to a new word would act inside of others, and need pieces on the way;
- WordPiece takes the longest piece that fits, so that a new one also begins longer words;
- Unigram weighs pieces, and every new one as much as the best spelling of any: a word wins over its own spelling,
  and in longer words where it scores more than the old pieces do.

So ids differ only where a word is a new piece, or (WordPiece, Unigram) begins with one.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from latemask.ground.console import printable, say
from latemask.ground.errors import UserError
from latemask.ground.files import write_json_atomically
from latemask.text.tokenizer import (
    LARGEST_VOCABULARY,
    VOCABULARY_MULTIPLE,
    load_tokenizer,
    save_tokenizer,
)

RECORD = "new_pieces.json"
"""Lies beside the tokenizer's own files, and comes and goes with them."""
_FEWEST = 2  # a word seen once is not worth a row
_LONGEST = 100  # characters; WordPiece takes no longer word
_SHOWN = 8
_WORD = re.compile(r"▁?\w+([-'’]\w+)*")


@dataclass(frozen=True)
class Extension:
    """What was added, and what it saves."""

    base: str
    base_pieces: int
    pieces: int
    saved: float
    """Share of the sample's tokens."""
    examples: tuple[str, ...]
    differing: int = 0
    """Old pieces that the merges never made of a word, and that now stand for it (BPE)."""

    def say(self) -> None:
        """Tell what came of it."""
        shown = ", ".join(printable(repr(example)) for example in self.examples)
        say(f"{self.pieces:,} new pieces behind {self.base_pieces:,}, {self.saved:.1%} fewer tokens: {shown}, …")
        if self.differing:
            say(f"{self.differing:,} old pieces that its merges never made of a word now stand for it")


def extended(tokenizer: Any, base: str, texts: Iterable[str], wanted: int) -> tuple[Any, Extension]:
    """Return the tokenizer of `base` with the words that save most in `texts` as pieces of their own.

    `wanted` of them, and as many more as make the vocabulary a multiple of 64, which the rows of a model are anyway.
    """
    refuse_other_kinds(tokenizer)
    counts = _counted(tokenizer.backend_tokenizer, texts)
    words = _split_words(tokenizer, counts)
    total = -(-(len(tokenizer) + wanted) // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    if total > LARGEST_VOCABULARY:
        raise UserError(f"--new-pieces {wanted}: no room, a vocabulary has {LARGEST_VOCABULARY:,} pieces at most")
    if len(words) < wanted:
        advice = f"pass --new-pieces {len(words)}, or give more text" if words else "give other text"
        raise UserError(
            f"the text has {len(words):,} words that the tokenizer splits and that occur twice or more, less than "
            f"--new-pieces {wanted}: {advice}"
        )
    best = sorted(words, key=lambda word: (-words[word], word))[: total - len(tokenizer)]
    model = tokenizer.backend_tokenizer.model
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    differing = _add(content, best, {word: [token.id for token in model.tokenize(word)] for word in best}, tokenizer)
    new = _with_content(tokenizer, content)
    assert new.convert_tokens_to_ids(best) == list(range(len(tokenizer), len(tokenizer) + len(best)))
    before, after = (_tokens(one.backend_tokenizer.model, counts) for one in (tokenizer, new))
    examples = tuple(new.decode([new.convert_tokens_to_ids(word)]) for word in best[:_SHOWN])
    return new, Extension(base, len(tokenizer), len(best), round(1 - after / before, 6), examples, differing)


def refuse_other_kinds(tokenizer: Any) -> None:
    """Refuse a tokenizer whose model takes no new words."""
    if reason := _why_not(tokenizer):
        raise UserError(
            f"the tokenizer at '{tokenizer.name_or_path}' takes no new pieces: {reason}; use it as it is, with "
            "--tokenizer"
        )


def can_extend(tokenizer: Any) -> bool:
    """Whether a tokenizer's model takes new words."""
    return _why_not(tokenizer) is None


def _why_not(tokenizer: Any) -> str | None:
    backend = tokenizer.backend_tokenizer
    kind = type(backend.model).__name__
    if kind not in _ADDING:
        return f"it is a {kind}, to which a word has no parts that a new piece could begin from"
    if len(_words(backend, "one two three")) < 3:
        return "it does not part a text into words before it merges"
    return None


def save_extended(tokenizer: Any, extension: Extension, folder: Path) -> None:
    """Write the tokenizer, and beside it what is new in it."""
    save_tokenizer(tokenizer, folder)
    write_json_atomically(folder / RECORD, asdict(extension))


def read_extension(folder: Path) -> Extension | None:
    """Return what is new in the tokenizer of a data folder, if something is."""
    path = folder / RECORD
    if not path.is_file():
        return None
    record = json.loads(path.read_text("utf-8"))
    return Extension(**{**record, "examples": tuple(record["examples"])})


def old_parts(old: Any, new: Any) -> list[list[int]] | None:
    """Return the old ids that spelled each new piece, in order; None where `new` does not extend `old`."""
    before, after = old.get_vocab(), new.get_vocab()
    added = sorted(set(after) - set(before), key=after.__getitem__)
    is_prefix = all(after.get(piece) == number for piece, number in before.items())
    if not is_prefix or [after[piece] for piece in added] != list(range(len(old), len(new))):
        return None
    tokenize = old.backend_tokenizer.model.tokenize
    return [[token.id for token in tokenize(piece)] for piece in added]


def _words(backend: Any, text: str) -> list[str]:
    """Return what the model gets to see of a text, word by word."""
    if backend.pre_tokenizer is None:
        return [text]
    normalized = backend.normalizer.normalize_str(text) if backend.normalizer else text
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(normalized)]


def _counted(backend: Any, texts: Iterable[str]) -> Counter[str]:
    counts = Counter[str]()
    for text in texts:
        counts.update(_words(backend, text))
    return counts


def _split_words(tokenizer: Any, counts: Counter[str]) -> dict[str, int]:
    """Return the words that become several pieces, all known, and the tokens that one piece for them would save."""
    model, old, unknown = tokenizer.backend_tokenizer.model, tokenizer.get_vocab(), tokenizer.unk_token_id
    tokenize, found = model.tokenize, {}
    if type(model).__name__ == "Unigram":
        counts = _without_punctuation(counts)
    for word, count in counts.items():
        if count < _FEWEST or len(word) > _LONGEST or word in old:
            continue
        parts = [token.id for token in tokenize(word)]
        if len(parts) > 1 and unknown not in parts and _is_a_word(_decoder(tokenizer)([word])):
            found[word] = count * (len(parts) - 1)
    return found


def _is_a_word(text: str) -> bool:
    """Whether somebody would call it one: indents and the rules of tables save many tokens, and mean nothing."""
    return text.isprintable() and any(letter.isalnum() for letter in text)


def _decoder(tokenizer: Any) -> Callable[[list[str]], str]:
    decoder = tokenizer.backend_tokenizer.decoder
    return decoder.decode if decoder else "".join


def _without_punctuation(counts: Counter[str]) -> Counter[str]:
    """Count what a word begins with up to a comma or the like: SentencePiece's words hold what stands around them."""
    found = Counter[str]()
    for word, count in counts.items():
        if match := _WORD.match(word):
            found[match[0]] += count
    return found


def _tokens(model: Any, counts: Counter[str]) -> int:
    return sum(count * len(model.tokenize(word)) for word, count in counts.items() if word)


def _add(content: dict[str, Any], words: list[str], parts: dict[str, list[int]], tokenizer: Any) -> int:
    """Put words into a tokenizer.json behind what is there; return how many old pieces are used otherwise."""
    beyond = sorted((token["id"], token["content"]) for token in content["added_tokens"])
    return _ADDING[content["model"]["type"]](content["model"], words, parts, beyond, tokenizer)


def _to_vocabulary(
    model: dict[str, Any], words: list[str], parts: Any, beyond: list[tuple[int, str]], tokenizer: Any
) -> int:
    """Number the words from the end on; added tokens move into the vocabulary, or they would be numbered behind it."""
    model["vocab"] |= {piece: number for number, piece in beyond}
    model["vocab"] |= {word: number for number, word in enumerate(words, len(tokenizer))}
    return 0


def _to_bpe(model: dict[str, Any], words: list[str], parts: Any, beyond: list[tuple[int, str]], tokenizer: Any) -> int:
    """Let the model take words that are in its vocabulary; see which old ones its merges did not make of them."""
    backend = tokenizer.backend_tokenizer
    special = {piece for _, piece in beyond}
    tokenize = backend.model.tokenize
    unmade = [piece for piece in model["vocab"] if piece not in special and len(tokenize(piece)) > 1]
    decode = _decoder(tokenizer)
    differing = (
        [] if model["ignore_merges"] else [piece for piece in unmade if piece in _words(backend, decode([piece]))]
    )
    _to_vocabulary(model, words, parts, beyond, tokenizer)
    model["ignore_merges"] = True
    return len(differing)


def _to_unigram(
    model: dict[str, Any], words: list[str], parts: dict[str, list[int]], beyond: list[tuple[int, str]], tokenizer: Any
) -> int:
    """Give all words one score, a little above the best of their spellings.

    Then a word also wins over spellings with other new pieces in them, which score as much and something less than 0
    besides. None is below the lowest score that was there: from that, the model derives what is unknown.
    """
    scores = [score for _, score in model["vocab"]]
    known = len(scores)
    model["vocab"] += [[piece, 0.0] for number, piece in beyond if number >= known]
    spelled = max(sum(scores[number] for number in parts[word]) for word in words)
    score = min(max(spelled + 1e-3, min(scores)), -1e-6)
    model["vocab"] += [[word, score] for word in words]
    return 0


_ADDING = {"BPE": _to_bpe, "WordPiece": _to_vocabulary, "Unigram": _to_unigram}


def _with_content(tokenizer: Any, content: dict[str, Any]) -> Any:
    """Return the tokenizer with another tokenizer.json, as the class that takes that file as it is.

    The families' own classes make their models anew from the pieces alone, without `ignore_merges`.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        tokenizer.save_pretrained(place)
        write_json_atomically(folder / "tokenizer.json", content)
        path = folder / "tokenizer_config.json"
        config = json.loads(path.read_text("utf-8"))
        config |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": list(tokenizer.model_input_names)}
        write_json_atomically(path, config)
        return load_tokenizer(folder)
