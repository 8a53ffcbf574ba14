"""One tiny tokenizer of every family whose encoders there are, as its checkpoints have it, made on the spot.

`make(kind)` returns a tokenizer, `save(kind, folder)` a folder as a checkpoint has one.
"""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertTokenizerFast,
    CamembertTokenizer,
    DebertaV2Tokenizer,
    DistilBertTokenizer,
    MPNetTokenizer,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

_WORDS = (
    "the quick brown fox jumps over a lazy dog while old friends sing of rivers and mountains in the north; "
    "nobody knows whether the winter returns before spring, or what they were told in the morning. "
)
TEXTS = [_WORDS, _WORDS.upper(), _WORDS.title(), "naïve café über straße 0123456789 ()[]<>=+-*/_'\"!?.,:;"] * 5
LETTERS = "LAGVSERTIDPKQNFYMHWCXBUZO.-"
BERTS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTAS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
SPLITS_OF_GPT4 = Regex(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+")


def _content(tokenizer: Tokenizer) -> dict[str, Any]:
    return json.loads(tokenizer.to_str())["model"]


@lru_cache
def _byte_pieces(special: tuple[str, ...], size: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    model = _content(tokenizer)
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


@lru_cache
def _word_pieces(special: tuple[str, ...], lowercase: bool) -> dict[str, int]:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=list(special), show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return dict(_content(tokenizer)["vocab"])


@lru_cache
def _scored_pieces() -> tuple[tuple[str, float], ...]:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(TEXTS, trainers.UnigramTrainer(vocab_size=180, show_progress=False))
    return tuple((piece, score) for piece, score in _content(tokenizer)["vocab"])


def _roberta() -> Any:
    vocab, merges = _byte_pieces(ROBERTAS, 330)
    return RobertaTokenizer(vocab=dict(vocab), merges=list(merges))


def _xlm_roberta() -> Any:
    first = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    return XLMRobertaTokenizer(vocab=[*first, *_scored_pieces(), ("<mask>", 0.0)])


def _camembert() -> Any:
    first = [("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0), ("<unk>NOTUSED", -100.0)]
    rest = [("<s>", 0.0), ("</s>", 0.0)]
    return CamembertTokenizer(vocab=[*first, *rest, *_scored_pieces(), ("<mask>", 0.0)])


def _deberta_v2() -> Any:
    first = [("[PAD]", 0.0), ("[CLS]", 0.0), ("[SEP]", 0.0), ("[UNK]", 0.0)]
    return DebertaV2Tokenizer(vocab=[*first, *_scored_pieces()], unk_id=3)  # and [MASK] behind, as theirs has it


def _bert(lowercase: bool = True) -> Any:
    return BertTokenizerFast(vocab=_word_pieces(BERTS, lowercase), do_lower_case=lowercase)


def _distilbert() -> Any:
    return DistilBertTokenizer(vocab=_word_pieces(BERTS, True))


def _mpnet() -> Any:
    return MPNetTokenizer(vocab=_word_pieces(("<s>", "<pad>", "</s>", "<unk>", "[UNK]", "<mask>"), True))


def _bytes_with(special: tuple[str, ...], split: Regex | None, frame: tuple[str, str], **names: Any) -> Any:
    vocab, merges = _byte_pieces((), 320)
    tokenizer = Tokenizer(models.BPE(vocab=dict(vocab), merges=list(merges), ignore_merges=split is not None))
    if split:
        by_words = pre_tokenizers.Split(split, "isolated")
        as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([by_words, as_bytes])
    else:
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True, lstrip="MASK" in word) for word in special])
    ids = [(word, tokenizer.token_to_id(word)) for word in dict.fromkeys(frame)]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{frame[0]} $A {frame[1]}", special_tokens=ids)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def _modernbert() -> Any:
    names = dict(zip(("unk_token", "cls_token", "sep_token", "pad_token", "mask_token"), _MODERN, strict=True))
    return _bytes_with(_MODERN, None, ("[CLS]", "[SEP]"), **names)


_MODERN = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
_EURO = ("<|begin_of_text|>", "<|end_of_text|>", "<|mask|>", "<|reserved_special_token_0|>")


def _eurobert() -> Any:
    """Llama's: no cls, no sep, and padding is the end of a text."""
    start, end, mask, _ = _EURO
    names = {"bos_token": start, "eos_token": end, "pad_token": end, "mask_token": mask}
    return _bytes_with(_EURO, SPLITS_OF_GPT4, (start, end), **names)


def _mmbert() -> Any:
    """Gemma's: BPE of characters with ▁ for spaces, and bytes where there is no piece."""
    special = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    bytes_ = [f"<0x{number:02X}>" for number in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=[*special, *bytes_], max_token_length=6, show_progress=False
    )
    tokenizer.train_from_iterator([f" {word}" for text in TEXTS for word in text.split(" ")], trainer)
    content = _content(tokenizer)
    merges = [tuple(pair) for pair in content["merges"]]
    tokenizer.model = models.BPE(
        vocab=content["vocab"], merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True
    )
    ids = [(word, tokenizer.token_to_id(word)) for word in ("<bos>", "<eos>")]
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A <eos>", special_tokens=ids)
    names = dict(zip(("pad_token", "eos_token", "bos_token", "unk_token", "mask_token"), special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def _esm() -> Any:
    """As latemask reads theirs, which has no fast version."""
    special = ("<cls>", "<pad>", "<eos>", "<unk>")
    vocab = {piece: number for number, piece in enumerate([*special, *LETTERS, "<null_1>", "<mask>"])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    by_letters = pre_tokenizers.Split(Regex(r"\S"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), by_letters])
    ids = [(word, vocab[word]) for word in ("<cls>", "<eos>")]
    tokenizer.post_processor = processors.TemplateProcessing(single="<cls> $A <eos>", special_tokens=ids)
    names = dict(zip(("cls_token", "pad_token", "eos_token", "unk_token"), special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token="<mask>", **names)


_KINDS = {
    "roberta": _roberta,
    "xlm-roberta": _xlm_roberta,
    "camembert": _camembert,
    "deberta-v2": _deberta_v2,
    "bert": _bert,
    "bert-cased": lambda: _bert(False),
    "electra": _bert,
    "distilbert": _distilbert,
    "mpnet": _mpnet,
    "modernbert": _modernbert,
    "eurobert": _eurobert,
    "mmbert": _mmbert,
    "nomic": _bert,
    "gte": _xlm_roberta,
    "esm": _esm,
}
KINDS = tuple(kind for kind in _KINDS if kind not in ("electra", "nomic", "gte"))
"""Those of electra, nomic and gte are bert's and xlm-roberta's."""
OF_WORDS = tuple(kind for kind in KINDS if kind != "esm")


def make(kind: str) -> Any:
    """Return a tiny tokenizer of a kind."""
    return _KINDS[kind]()


def save(kind: str, folder: Path) -> Path:
    """Write one as a checkpoint has it."""
    make(kind).save_pretrained(folder)
    return folder
