"""New pieces: what is chosen saves what was promised, and a text without them has the ids that it had."""

import json
import re
from functools import cache
from tempfile import mkdtemp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latemask import UserError, inspect, prepare
from latemask.text.new_pieces import _words, extended, old_parts
from latemask.text.tokenizer import load_tokenizer, vocabulary_of
from tests.launching import run
from tests.text.kinds_of_tokenizers import KINDS, make, save

TAKES_WORDS = [kind for kind in KINDS if kind not in ("esm", "mmbert")]
TEXTS = [
    "The haemoglobin of an erythrocyte, haemoglobins and erythrocytes: Zygote, zygote, the zygote's naïve mitosis.",
    "erythrocyte haemoglobin (haemoglobin) mitosis. A zygote in meiosis; haemoglobin-like things are things.",
] * 3


@cache
def pair(kind, wanted=6):
    """The old tokenizer, the new one as it is read back, and what is said of it."""
    old = load_tokenizer(save(kind, mkdtemp()))
    new, extension = extended(old, kind, TEXTS, wanted)
    folder = mkdtemp()
    new.save_pretrained(folder)
    return old, load_tokenizer(folder), extension


_SOME = """the quick brown fox haemoglobin haemo globin haemoglobinopathy erythro erythrocyte Zygote zyg zygo mit osis
mitosis, naïve café ☃ 日本語 <mask> [MASK] --- 12345 (haemoglobin) thing thingsthings things,"""
WORDS = st.sampled_from([*_SOME.split(), "\n\t"])
ANY_TEXT = st.one_of(
    st.text(max_size=60), st.lists(WORDS, max_size=12).map(" ".join), st.lists(WORDS, max_size=6).map("".join)
)


@pytest.mark.parametrize("kind", TAKES_WORDS)
@settings(max_examples=15, deadline=None)
@given(text=ANY_TEXT)
def test_a_text_without_new_pieces_has_the_ids_that_it_had(kind, text):
    old, new, _ = pair(kind)
    special = "|".join(map(re.escape, old.all_special_tokens))
    words = [word for part in re.split(special, text) for word in _words(old.backend_tokenizer, part)]
    added = [piece for piece in new.get_vocab() if piece not in old.get_vocab()]
    if any(piece in word for piece in added for word in words):
        return
    assert new(text).input_ids == old(text).input_ids


@pytest.mark.parametrize("kind", TAKES_WORDS)
@settings(max_examples=15, deadline=None)
@given(text=ANY_TEXT)
def test_a_text_with_them_decodes_as_before(kind, text):
    old, new, _ = pair(kind)
    before, after = old(text).input_ids, new(text).input_ids
    if old.unk_token_id not in before:
        assert new.decode(after) == old.decode(before)
    if kind in ("roberta", "modernbert", "eurobert"):  # a word is new as a whole, or what it was
        spelled = dict(zip(range(len(old), len(new)), old_parts(old, new), strict=True))
        assert [part for number in after for part in spelled.get(number, [number])] == before


@pytest.mark.parametrize("kind", TAKES_WORDS)
def test_old_ids_stay_and_new_ones_follow(kind):
    old, new, extension = pair(kind)
    assert old.get_vocab().items() <= new.get_vocab().items()
    assert sorted(set(new.get_vocab().values()) - set(old.get_vocab().values())) == list(range(len(old), len(new)))
    assert (vocabulary_of(new).mask, vocabulary_of(new).special) == (
        vocabulary_of(old).mask,
        vocabulary_of(old).special,
    )
    assert len(new) - len(old) == extension.pieces >= 6


@pytest.mark.parametrize("kind", TAKES_WORDS)
def test_what_was_promised_is_saved(kind):
    old, new, extension = pair(kind)
    before, after = (sum(len(one(text, add_special_tokens=False).input_ids) for text in TEXTS) for one in (old, new))
    assert 1 - after / before == pytest.approx(extension.saved, abs=1e-6)
    assert extension.saved > 0.3


@pytest.mark.parametrize("kind", TAKES_WORDS)
def test_a_new_word_is_one_token_in_a_sentence(kind):
    old, new, _ = pair(kind)
    sentence = "the haemoglobin of"
    ids = new(sentence, add_special_tokens=False).input_ids
    found = [new.decode([number]).strip() for number in ids if number >= len(old)]
    assert "haemoglobin" in found


def test_the_best_are_chosen_by_tokens_saved_whatever_the_order_of_the_texts():
    old = make("bert")
    new, _ = extended(old, "bert", TEXTS, 6)
    other, _ = extended(old, "bert", TEXTS[::-1], 6)
    assert new.get_vocab() == other.get_vocab()
    tokenize = old.backend_tokenizer.model.tokenize
    counts = {"haemoglobin": 12, "zygote": 15, "mitosis": 6}
    order = sorted(counts, key=lambda word: -counts[word] * (len(tokenize(word)) - 1))
    ids = [new.convert_tokens_to_ids(word) for word in order]
    assert ids == sorted(ids)


def test_the_vocabulary_is_rounded_up_to_a_multiple_of_64_where_the_text_has_the_words(corpus):
    old = make("bert")
    new, extension = extended(old, "bert", [corpus.read_text()[:50_000]], 10)
    assert (len(new), extension.pieces) == (256, 56)


def test_old_pieces_that_merges_do_not_make_are_counted():
    old = make("modernbert")
    assert extended(old, "x", TEXTS, 3)[1].differing == 0
    content = json.loads(old.backend_tokenizer.to_str())
    (first, second), vocabulary = content["model"]["merges"].pop(), content["model"]["vocab"]
    vocabulary["Ġquark"] = vocabulary.pop(first + second)  # a word that no merge makes
    old._tokenizer = type(old.backend_tokenizer).from_str(json.dumps(content))
    assert extended(old, "x", TEXTS, 3)[1].differing == 1


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("\n\n".join(f"{text} Number {n}." for n, text in enumerate(TEXTS * 10)))
    return path


def test_prepare_says_what_was_added_and_inspect_shows_it(tmp_path, text, capsys):
    base = save("roberta", tmp_path / "base")
    data = prepare(text, out=tmp_path / "out", extend=str(base), new_pieces=5)
    record = data.manifest["extension"]
    assert (record["base"], record["base_pieces"]) == (str(base), 330)
    assert (
        f"{record['pieces']} new pieces behind 330, {record['saved']:.1%} fewer tokens: ' " in capsys.readouterr().err
    )
    assert inspect(tmp_path / "out", rows=0)["extension"] == record
    assert f"{record['pieces']} behind the 330 of" in capsys.readouterr().out
    prepare(text, out=tmp_path / "out", extend=str(base), new_pieces=5)
    assert "nothing to do" in capsys.readouterr().err
    with pytest.raises(UserError, match="other settings"):
        prepare(text, out=tmp_path / "out", extend=str(base), new_pieces=6)


def test_the_bytes_do_not_depend_on_the_number_of_workers(tmp_path, text):
    base = save("roberta", tmp_path / "base")
    words = ("prepare", text, "--extend", base, "--new-pieces", "5", "--out")
    found = []
    for name, workers in (("one", "1"), ("two", "2")):
        assert run(tmp_path / f"{name}-says", *words, tmp_path / name, "--workers", workers).returncode == 0
        paths = (path for path in sorted((tmp_path / name).rglob("*")) if path.is_file() and path.name[0] != ".")
        found.append({path.relative_to(tmp_path / name): path.read_bytes() for path in paths})
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["roberta", "bert", "xlm-roberta"])
def test_indents_and_rules_are_no_words(kind):
    texts = ["word\n        +-----------+-----------+\n\n\t\t~~~~~~~~ haemoglobin erythrocyte mitosis"] * 5
    new, extension = extended(load_tokenizer(save(kind, mkdtemp())), kind, texts, 2)
    added = new.convert_ids_to_tokens(range(extension.base_pieces, len(new)))
    assert added
    assert all(any(letter.isalpha() for letter in new.decode([number])) for number in new.convert_tokens_to_ids(added))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"extend": "x"}, "say how many, with --new-pieces"),
        ({"new_pieces": 5}, "say to which tokenizer, with --extend"),
        ({"extend": "x", "new_pieces": 5, "tokenizer": "y"}, "--tokenizer does not go with --extend"),
        ({"extend": "x", "new_pieces": 5, "vocab_size": 500}, "--vocab-size does not go with --extend"),
        ({"extend": "x", "new_pieces": 0}, "--new-pieces 0: one at least"),
        ({"extend": "", "new_pieces": 5}, "--extend is empty"),
        ({"tokenizer": ""}, "--tokenizer is empty"),
        ({"extend": "x", "new_pieces": 5}, "no tokenizer at 'x'"),
        ({"extend": "BASE", "new_pieces": 2**25}, "no room, a vocabulary has 16,777,216"),
        ({"extend": "BASE", "new_pieces": 5000}, r"less than --new-pieces 5000: pass --new-pieces \d+"),
        ({"extend": "ESM", "new_pieces": 5}, "takes no new pieces.*WordLevel"),
        ({"extend": "GEMMA", "new_pieces": 5}, "takes no new pieces.*does not part a text into words"),
    ],
)
def test_what_cannot_be_added_is_one_line(tmp_path, text, options, message):
    kinds = {"BASE": "roberta", "ESM": "esm", "GEMMA": "mmbert"}
    if options.get("extend") in kinds:
        options = {**options, "extend": str(save(kinds[options["extend"]], tmp_path / "base"))}
    with pytest.raises(UserError, match=message) as caught:
        prepare(text, out=tmp_path / "out", **options)
    assert str(caught.value).count("\n") <= 1
    assert not (tmp_path / "out" / "manifest.json").exists()
