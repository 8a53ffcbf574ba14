"""Tokenizers of all families: what stands in a shard is what they say, and every verb takes them."""

import json
import re

import numpy as np
import pytest
from transformers import EsmTokenizer, PreTrainedTokenizerFast
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from latemask import UserError, fill, inspect, prepare, pretrain
from latemask.filling import Filler
from latemask.recipe import BudgetRecipe
from latemask.text.tokenizer import load_tokenizer, vocabulary_of
from tests.conftest import tiny_recipe
from tests.text.kinds_of_tokenizers import KINDS, LETTERS, make, save


@pytest.fixture(scope="module", params=KINDS)
def prepared(request, tmp_path_factory):
    """The tokenizer's own folder, the documents, and the data."""
    folder = tmp_path_factory.mktemp(request.param)
    draw = np.random.default_rng(0)
    documents = [f"Document {n}: the quick brown fox, naïve and old.\nIt jumps." for n in range(60)]
    if request.param == "esm":
        documents = ["".join(draw.choice(list(LETTERS[:20]), 50)) for _ in range(60)]
    (folder / "in.txt").write_text("\n\n".join(documents))
    save(request.param, folder / "tokenizer")
    data = prepare(folder / "in.txt", out=folder / "data", tokenizer=str(folder / "tokenizer"), validation=0)
    return request.param, documents, data


def test_every_document_is_what_the_tokenizer_makes_of_it_and_its_end(prepared):
    kind, documents, data = prepared
    tokenizer, vocabulary = make(kind), data.vocabulary
    (shard,) = data.shards("train")
    tokens = shard.map(np.dtype("<u2")).tolist()
    expected = [[*tokenizer(text, add_special_tokens=False).input_ids, vocabulary.eos] for text in documents]
    assert tokens == [number for ids in expected for number in ids]
    framed = tokenizer("the").input_ids
    assert (framed[0], framed[-1]) == (vocabulary.bos, vocabulary.eos)


def test_what_looks_like_a_special_token_in_a_text_is_none(prepared, tmp_path):
    *_, data = prepared
    words = " ".join(data.tokenizer.all_special_tokens)
    (tmp_path / "in.txt").write_text("\n\n".join(f"MA{words}VSE {words}{n}" for n in range(3)))
    again = prepare(tmp_path / "in.txt", out=tmp_path / "out", tokenizer=str(data.tokenizer_folder), validation=0)
    (shard,) = again.shards("train")
    tokens = shard.map(np.dtype("<u2")).tolist()
    assert set(tokens) & set(data.vocabulary.special) <= {data.vocabulary.eos, data.tokenizer.unk_token_id}
    assert tokens.count(data.vocabulary.eos) == 3


def test_a_row_begins_with_the_start_and_decodes_to_the_text(prepared):
    kind, documents, data = prepared
    (row,) = data.rows("train", 32).take([0])
    assert row[0] == data.vocabulary.bos
    shown = data.tokenizer.decode(row[1:-1], skip_special_tokens=True)

    def plain(text):
        return re.sub(r"\s", "", text.lower().replace("ï", "i").replace("[unk]", ""))

    if kind not in ("xlm-roberta", "camembert", "deberta-v2", "bert", "bert-cased", "distilbert", "mpnet"):
        assert plain(documents[0]).startswith(plain(shown).replace("\ufffd", ""))  # they leave no character out
    assert len(plain(shown)) > 10


def test_inspect_shows_it(prepared, capsys):
    _, _, data = prepared
    facts = inspect(data.folder, rows=1, length=32)
    assert facts["vocabulary"]["size"] == data.vocabulary.size
    assert len(facts["rows"]) == 1


def test_a_model_of_it_fills_the_mask_as_the_user_wrote_it(prepared, tmp_path, capsys):
    kind, _, data = prepared
    recipe = tiny_recipe(budget=BudgetRecipe(steps=1))
    run = pretrain(recipe, data=data.folder, out=tmp_path / "run")
    mask = data.tokenizer.mask_token
    before, after = ("MAG", "VSE") if kind == "esm" else ("the quick", "fox")
    ours, theirs = (Filler(run.path)._ids(f"{before} {written} {after}").tolist() for written in ("<mask>", mask))
    assert ours == theirs
    assert ours.count(data.vocabulary.mask) == 1
    assert ours[:2] == data.tokenizer(before).input_ids[:2]
    assert len(fill(run.path, f"{before} <mask> {after}", top=2)) == 1


def test_end_and_padding_may_be_one_and_reserved_tokens_are_special():
    vocabulary = vocabulary_of(make("eurobert"))
    reserved = make("eurobert").convert_tokens_to_ids("<|reserved_special_token_0|>")
    assert vocabulary.pad == vocabulary.eos
    assert reserved in vocabulary.special
    assert len(set(vocabulary.special)) == len(vocabulary.special)


@pytest.mark.parametrize("kept", ["cls_token sep_token", "bos_token eos_token"])
def test_start_and_end_by_either_name(kept):
    given = make("modernbert")
    names = dict.fromkeys(kept.split()[:1], "[CLS]") | dict.fromkeys(kept.split()[1:], "[SEP]")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=given.backend_tokenizer, pad_token="[PAD]", mask_token="[MASK]", **names
    )
    vocabulary = vocabulary_of(tokenizer)
    assert (vocabulary.bos, vocabulary.eos) == tuple(given.convert_tokens_to_ids(["[CLS]", "[SEP]"]))


def test_esms_own_tokenizer_is_read_as_a_fast_one_with_the_same_ids(tmp_path):
    pieces = ["<cls>", "<pad>", "<eos>", "<unk>", *LETTERS, "<null_1>", "<mask>"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    slow = EsmTokenizer(str(tmp_path / "vocab.txt"))
    slow.save_pretrained(tmp_path)
    fast = load_tokenizer(tmp_path)
    assert fast.is_fast
    assert vocabulary_of(fast) == vocabulary_of(make("esm"))
    for text in ("MKTAYIAK", "MK <mask> AY", "M K\nT", "MKjunkAY J!", "<null_1>M<unk>", ""):
        assert fast(text).input_ids == slow(text).input_ids


def test_what_cannot_be_used_is_one_line_with_the_remedy(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]))
    config = {"tokenizer_class": "Theirs", "auto_map": {"AutoTokenizer": ["theirs.Theirs", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"no code of strangers: save it as a plain") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_slow_one_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]))
    slow = BertTokenizerLegacy(str(tmp_path / "vocab.txt"))
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *given, **options: slow)
    with pytest.raises(UserError, match=r"no fast version \(tokenizer.json\).*convert it"):
        load_tokenizer(tmp_path)


def test_one_without_a_mask_is_one_line(tmp_path):
    given = make("modernbert")
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    PreTrainedTokenizerFast(tokenizer_object=given.backend_tokenizer, **names).save_pretrained(tmp_path / "t")
    (tmp_path / "in.txt").write_text("one\n\ntwo")
    with pytest.raises(UserError, match=r"no mask token.*give another, or add") as caught:
        prepare(tmp_path / "in.txt", out=tmp_path / "out", tokenizer=str(tmp_path / "t"))
    assert "\n" not in str(caught.value)
