"""Was the test in the pre-training text? What was planted is found, what is clean is not, and chance is counted."""

import json
import random
import shutil

import numpy as np
import pytest

from latemask.evaluation import contamination
from latemask.evaluation.contamination import corpora_of, found_in, open_corpora
from latemask.ground.errors import UserError
from latemask.text import Mixture, PreparedData, prepare
from tests.text.test_ngrams import slow_words

LONG = "The old clock in the village square strikes twelve, though nobody has wound it for more than thirty years."
SHORT = "The children who play here like apples."
WRAPPED = "Seven grey geese walked slowly\nover the frozen lake."
HEADING = "Weather\nIt rains nearly every day in autumn."
PLANTED = f"Something before. {LONG} Something behind. {SHORT} And more.\n{WRAPPED}\nThe end of it.\n{HEADING}"


def filler(seed: int, sentences: int = 30) -> str:
    """Text of a language of its own."""
    chance = random.Random(seed)
    words = [
        ["".join(chance.choices("aeioulmnrst", k=5)) for _ in range(chance.randint(4, 20))] for _ in range(sentences)
    ]
    return " ".join(f"{' '.join(sentence)}." for sentence in words)


def write(path, *documents):
    path.write_text("\n\n".join(documents))
    return path


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> PreparedData:
    folder = tmp_path_factory.mktemp("planted")
    text = write(folder / "in.txt", *map(filler, range(40)), PLANTED, "too short to be kept, whatever it may say")
    return prepare([text], out=folder / "data", vocab_size=300, validation=0, min_chars=100)


@pytest.fixture(scope="module")
def clean(tmp_path_factory, planted) -> PreparedData:
    folder = tmp_path_factory.mktemp("clean")
    text = write(folder / "in.txt", *map(filler, range(100, 140)))
    return prepare([text], out=folder / "data", tokenizer=str(planted.tokenizer_folder))


ROWS = {
    LONG: True,
    f"In a review: {LONG.upper()}": True,
    "old clock in the village square strikes twelve though nobody has wound it": True,  # 13 words
    "clock in the village square strikes twelve though nobody has wound it": False,  # 12, and no sentence
    SHORT: True,
    "the children who play here like apples": True,
    "Mr. Smith. The children who play here like apples!": True,
    "The children who play here like pears.": False,
    "children who play here like apples": False,  # inside a sentence
    "The children who play here like apples. The others like nothing at all.": False,  # one of two
    "Seven grey geese walked slowly over the frozen lake.": True,
    "It rains nearly every day in autumn.": True,
    "Too short to be kept, whatever it may say.": False,
    "And more.": False,
    "": False,
}


def test_what_was_planted_is_found_and_nothing_else(planted, clean):
    found = found_in([planted], list(ROWS))
    assert dict(zip(ROWS, found.is_found.tolist(), strict=True)) == ROWS
    assert found.is_too_short.tolist() == [row in ("And more.", "") for row in ROWS]
    assert found_in([clean], list(ROWS)).found == 0
    assert found_in([clean, planted], list(ROWS)).is_found.tolist() == list(ROWS.values())


def test_it_finds_what_a_slow_search_finds(data, corpus, monkeypatch):
    """In text of all sorts: stretches of the corpus and of another order of its words."""
    documents = corpus.read_text().split("\n\n")
    chance = random.Random(0)
    rows = []
    for document in chance.choices(documents, k=60):
        words = document.split()
        first = chance.randrange(max(1, len(words) - 30))
        rows.append(" ".join(words[first : first + 30]))
        rows.append(" ".join(chance.sample(words[first : first + 30], len(words[first : first + 30]))))
    rows = [row for row in rows if len(slow_words(row)) >= 13]
    shard = np.fromfile(data.folder / "train" / "00000_0000.ds", "<u2")
    trained_on = list(map(slow_words, data.tokenizer.decode(shard).split("</s>")))
    ngrams = {tuple(words[n : n + 13]) for words in trained_on for n in range(len(words) - 12)}
    runs = [[tuple(words[n : n + 13]) for n in range(len(words) - 12)] for words in map(slow_words, rows)]
    expected = [not ngrams.isdisjoint(of_row) for of_row in runs]
    assert 20 < sum(expected) < len(rows) - 20
    monkeypatch.setattr("latemask.text.ngrams._BATCH_CHARACTERS", 1000)
    assert found_in([data], rows).is_found.tolist() == expected


def test_a_row_of_several_texts_is_found_if_one_of_them_is(planted):
    found = found_in([planted], [(SHORT, "The children who play here likes apples."), ("Not this.", "Nor that."), []])
    assert found.is_found.tolist() == [True, False, False]
    assert found.is_too_short.tolist() == [False, True, True]
    assert found_in([planted], []).found == 0


def test_what_was_held_out_was_not_trained_on(tmp_path, planted):
    """Also where the document is held out at the very end, because no other was."""
    for name in "abc":
        write(tmp_path / f"{name}.txt", *(filler(seed, 5) for seed in range(6)))
    inputs = [tmp_path / f"{name}.txt" for name in "abc"]
    data = prepare(inputs, out=tmp_path / "data", tokenizer=str(planted.tokenizer_folder), validation=1e-9)
    assert data.manifest["splits"]["validation"]["documents"] == 3
    found = found_in([data], [filler(seed, 5) for seed in range(6)])
    assert found.found == 5


def test_by_chance_as_many_are_found_as_it_says(clean, monkeypatch):
    """With a table that errs often: fewer bits of each hash are looked at."""
    rows = [filler(seed, 3) for seed in range(1000, 3000)] + [f"{filler(seed, 1)[:35]}." for seed in range(2000)]
    usual = contamination.CorpusNgrams.holds

    def careless(self, hashes):
        return usual(self, hashes) | (hashes >> np.uint64(57) == 0)

    chance = 1 / 128
    monkeypatch.setattr(contamination.CorpusNgrams, "holds", careless)
    monkeypatch.setattr("latemask.text.ngram_table.NgramTable.chance", chance)
    found = found_in([clean], rows)
    assert found.by_chance > 200
    assert abs(found.found - found.by_chance) < 5 * np.sqrt(found.by_chance)


def test_of_a_large_corpus_a_part_is_kept_and_it_says_so(tmp_path, planted, monkeypatch):
    monkeypatch.setattr("latemask.text.ngram_table.WHOLE_TEXT", 5000)
    documents = [filler(seed, 4) for seed in range(100)]
    text = write(tmp_path / "in.txt", *documents)
    data = prepare([text], out=tmp_path / "data", tokenizer=str(planted.tokenizer_folder), validation=0)
    assert data.manifest["ngrams"]["one_in"] >= 4
    found = found_in([data], [*documents, *(filler(seed, 4) for seed in range(200, 300))])
    assert found.is_found[:100].mean() > 0.9  # each has many n-grams
    assert found.is_found[100:].sum() <= 1
    assert f"1 in {found.one_in} of its n-grams" in found.words("rows")


def test_it_is_said_in_one_line(planted, clean):
    line = found_in([planted], list(ROWS)).words("rows of dev")
    assert (
        line == "8 of 15 rows of dev are found in the pre-training text (about 0.0 by chance); 2 are too short to tell"
    )


def test_an_old_data_folder_says_that_nothing_can_be_said(tmp_path, planted, clean):
    text = write(tmp_path / "in.txt", PLANTED, filler(0))
    old = prepare([text], out=tmp_path / "old", tokenizer=str(planted.tokenizer_folder), no_ngrams=True)
    found = found_in([old], [SHORT])
    assert not found.is_known
    said = found.words("rows")
    assert said.startswith("whether rows are in the pre-training text cannot be told from ")
    assert "old (prepared without n-grams" in said
    both = found_in([planted, old], [SHORT])
    assert both.found == 1
    assert "not looked up in" in both.words("rows")


def test_a_damaged_file_is_named(tmp_path, planted):
    shutil.copytree(planted.folder, tmp_path / "copy")
    path = tmp_path / "copy" / "ngrams.bin"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    (data,) = open_corpora([tmp_path / "copy"], [])
    with pytest.raises(UserError, match=r"ngrams\.bin does not match its checksum"):
        found_in([data], [SHORT])


def run_on(folder, mixture: Mixture, **changes):
    """The folder of a run, as far as it is looked at."""
    folder.mkdir(exist_ok=True)
    (folder / "recipe.yaml").write_text("")
    record = {**mixture.record, **changes}
    record = {key: value for key, value in record.items() if value is not None}
    (folder / "run.json").write_text(json.dumps({"data": record}))
    return folder


def test_the_data_of_a_run_are_found_unless_they_are_gone_or_changed(tmp_path, planted, clean):
    def folders(encoder):
        return [data.folder for data in corpora_of(str(encoder))]

    one, two = Mixture.open(planted.folder), Mixture.open([planted.folder, clean.folder])
    run = run_on(tmp_path / "run", one)
    for inside in ("", "encoder", "checkpoints/checkpoint-5"):
        assert folders(run / inside) == [planted.folder]
    assert folders(run_on(tmp_path / "run", one, folders=None)) == [planted.folder]  # of an earlier version
    assert folders(run_on(tmp_path / "run", two)) == [planted.folder, clean.folder]
    assert folders(run_on(tmp_path / "run", two, folders=None)) == []
    assert folders(run_on(tmp_path / "run", one, folders=[str(clean.folder)])) == []
    assert folders(run_on(tmp_path / "run", one, folders=[str(tmp_path / "gone")])) == []
    for no_run in (tmp_path, "random:small", "nobody/nothing", f"random:{run}"):
        assert folders(no_run) == []
    run_on(tmp_path / "run", one)
    run_on(tmp_path / "other", two)
    opened = open_corpora(None, [str(tmp_path / "run"), str(tmp_path / "other")])
    assert [data.folder for data in opened] == [planted.folder, clean.folder]
    assert [data.folder for data in open_corpora([clean.folder], [str(tmp_path / "run")])] == [clean.folder]
