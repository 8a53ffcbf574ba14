"""N-grams: the words that a reader would count, hashed alike wherever they stand, and a table that finds them again."""

import re
import unicodedata
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latemask.ground.errors import UserError
from latemask.text import ngram_table, ngrams
from latemask.text.ngram_table import CorpusNgrams, NgramTable, NgramWriter, one_in
from latemask.text.ngrams import WORDS, Words, corpus_hashes


def hash_of(words: Sequence[str]) -> int:
    """What a run of words is kept as, by itself."""
    found = Words.of([" ".join(words)])
    return int(found._runs(np.zeros(1, np.int64), len(words))[0])


def slow_words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", text).lower())


def slow_runs(texts: list[str]) -> set[tuple[str, ...]]:
    """The oracle: one n-gram and one sentence after another."""
    found = set()
    for text in texts:
        words = slow_words(text)
        found |= {tuple(words[first : first + WORDS]) for first in range(len(words) - WORDS + 1)}
        for end in (r"\.(?!\w)|[!?]", r"\.(?!\w)|[!?]|\n"):
            sentences = map(slow_words, re.split(end, text))
            found |= {tuple(words) for words in sentences if 5 <= len(words) < WORDS}
    return found


def check_against_the_oracle(texts: list[str]) -> None:
    hashes, runs = set(corpus_hashes(texts, 1).tolist()), slow_runs(texts)
    assert hashes == {hash_of(words) for words in runs}
    assert len(hashes) == len(runs)  # no two are taken for one


TEXTS = [
    "The cat sat on the mat. It was 3.5 metres long, i.e. not short! Was it? Yes: it was and it went on and on and on.",
    "a b c d e f g h i j k l\nm n o\n\np q r s t. " * 3,
    "Only four words here.",
    "",
    "  ...  ",
    "É e\u0301 ﬁne ＦＵＬＬ width ½ of it_all, O'Neill's co-operation",
]


def test_the_hashes_are_those_of_a_slow_loop():
    check_against_the_oracle(TEXTS)


def test_no_two_runs_of_a_real_text_have_the_same_hash(corpus):
    texts = corpus.read_text().split("\n\n")
    runs = {tuple(words[n : n + WORDS]) for words in map(slow_words, texts) for n in range(len(words) - WORDS + 1)}
    hashes = [Words.of([text]).ngrams()[0] for text in texts]
    assert len(runs) > 20_000
    assert len(np.unique(np.concatenate(hashes))) == len(runs)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text("ab C.!\n'é3", max_size=80), max_size=4))
def test_the_hashes_of_any_texts_are_those_of_a_slow_loop(texts):
    check_against_the_oracle(texts)


def test_texts_do_not_run_into_one_another_whatever_the_batches(monkeypatch):
    texts = [f"{n} is a number and {n + 1} is the next one, as everybody knows by now" for n in range(50)]
    whole = corpus_hashes(texts, 1)
    monkeypatch.setattr(ngrams, "_BATCH_CHARACTERS", 100)
    assert set(corpus_hashes(texts, 1)) == set(whole)
    assert len(whole) == 50 * (15 - WORDS + 1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The quick, brown fox - it JUMPS!", "the quick brown fox it jumps"),
        ("caf\u00e9 \ufb01ne", "CAFE\u0301 fine"),
        ("it 's a film .", "it's a film."),
        ("हिन्दी भाषा", "हिन्दी, भाषा।"),
    ],
)
def test_case_punctuation_and_forms_of_characters_make_no_difference(one, other):
    assert Words.of([one]).hashes.tolist() == Words.of([other]).hashes.tolist()


@pytest.mark.parametrize(
    ("text", "count"),
    [("हिन्दी भाषा", 2), ("我喜欢读书。", 5), ("GPT模型", 3), ("ภาษาไทย", 7), ("한국어 문장", 2), ("русский язык", 2)],
)
def test_words_of_other_scripts(text, count):
    assert len(Words.of([text]).hashes) == count


def table_of(tmp_path, *parts: np.ndarray, kept: int = 1) -> tuple[CorpusNgrams, bytes]:
    paths = {}
    for number, hashes in enumerate(parts):
        path = tmp_path / f"{number}.ngrams"
        path.write_bytes(np.sort(hashes).tobytes())
        paths[path] = len(hashes)
    table = NgramTable.write(paths, tmp_path / "ngrams.bin", kept)
    return CorpusNgrams(tmp_path, table), (tmp_path / "ngrams.bin").read_bytes()


def draws(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, count, np.uint64)


@pytest.mark.parametrize("count", [1, 9, 50_000])
def test_all_that_is_in_a_table_is_found_and_of_the_rest_as_much_as_the_formula_says(tmp_path, count):
    table, _ = table_of(tmp_path, draws(count, 0))
    assert table.holds(draws(count, 0)).all()
    others = 500_000
    expected = others * table.table.chance
    assert abs(table.holds(draws(others, 1)).sum() - expected) < 5 * np.sqrt(expected) + 1
    assert table.table.chance <= 2**-13


def test_a_table_takes_18_bits_an_entry_or_less_where_it_is_large(tmp_path):
    _, content = table_of(tmp_path, draws(2**18, 0))
    assert len(content) * 8 <= 18 * 2**18


def test_a_table_does_not_depend_on_its_parts_nor_on_how_much_is_merged_at_a_time(tmp_path, monkeypatch):
    hashes = draws(5000, 0)
    _, whole = table_of(tmp_path, hashes)
    monkeypatch.setattr(ngram_table, "_AT_A_TIME", 100)
    _, in_parts = table_of(tmp_path, hashes[4000:], hashes[:1], hashes[1:4000])
    assert in_parts == whole


def test_an_empty_table_holds_nothing(tmp_path):
    table, _ = table_of(tmp_path)
    assert not table.holds(draws(100, 0)).any()
    assert table.table.chance == 0


def test_a_damaged_part_is_named(tmp_path):
    path = tmp_path / "00000_0000.ngrams"
    path.write_bytes(bytes(15))
    with pytest.raises(UserError, match=r"00000_0000\.ngrams is missing or damaged"):
        NgramTable.write({path: 2}, tmp_path / "ngrams.bin", 1)


def test_of_a_large_corpus_the_same_part_of_all_hashes_is_kept(tmp_path):
    assert [one_in(size) for size in (0, 10**6, 2**30, 2**30 + 1, 10**11)] == [1, 1, 1, 2, 128]
    hashes = corpus_hashes(TEXTS * 20, 1)
    kept = corpus_hashes(TEXTS * 20, 4)
    assert set(kept) == {value for value in hashes if value % 4 == 0}
    table, _ = table_of(tmp_path, kept, kept=4)
    assert table.holds(hashes).tolist() == table.kept(hashes).tolist()


def test_a_writer_sorts_what_came_in_pieces(tmp_path):
    writer = NgramWriter(tmp_path / "aside", 1)
    for text in TEXTS:
        writer.add([text])
    writer.seal(tmp_path / "records" / "part.ngrams")
    found = np.fromfile(tmp_path / "records" / "part.ngrams", "<u8")
    assert found.tolist() == sorted(corpus_hashes(TEXTS, 1).tolist())
    assert writer.count == len(found)
