"""CoNLL's variants, CoNLL-U among them: words and tags by line; what is none is named with its line."""

import gzip

import pytest

from latemask import UserError
from latemask.evaluation.conll import is_conll, read_conll, read_words

CONLL2003 = "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n\nPeter NNP B-NP B-PER\n"
CONLLU = (
    "# sent_id = 1\n# text = im Haus\n1-2\tim\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "1\tin\tin\tADP\t_\t_\t_\t_\t_\t_\n2\tdem\tder\tDET\t_\t_\t_\t_\t_\t_\n\n"
)


def test_words_and_tags_are_the_first_and_the_last_column(table):
    file = read_conll(table("a.conll", CONLL2003))
    assert file.words == [["EU", "rejects"], ["Peter"]]
    assert file.tags == [["B-ORG", "O"], ["B-PER"]]
    assert file.numbers == [[3, 4], [7]]


def test_columns_can_be_named_by_number(table):
    assert read_conll(table("a.conll", CONLL2003), "1", "2").tags == [["NNP", "VBZ"], ["NNP"]]
    file = read_conll(table("a.conllu", CONLLU), "2", "4")
    assert (file.words, file.tags) == ([["in", "dem"]], [["ADP", "DET"]])


def test_a_hash_is_a_word_where_no_tab_tells(table):
    assert read_conll(table("a.txt", "# O\nnow B-X\n")).words == [["#", "now"]]
    assert read_conll(table("a.tsv", "#\tO\nnow then\tB-X\n")).words == [["#", "now then"]]


def test_a_file_to_be_tagged_needs_no_tags(table):
    assert read_words(table("a.txt", "The\nfilm\n\nIt\n")) == [["The", "film"], ["It"]]
    assert read_words(table("b.txt", CONLL2003)) == [["EU", "rejects"], ["Peter"]]


@pytest.mark.parametrize(
    ("text", "word", "tag", "message"),
    [
        ("EU B-ORG\nrejects\n", None, None, "a.txt:2: one column only"),
        ("EU\tO\n\tO\n", None, None, "a.txt:2: no word"),
        ("EU\tO\nx\t\n", None, None, "a.txt:2: no tag"),
        ("EU O\n", None, "5", "a.txt:1: 2 columns; there is no column 5"),
        ("EU O\n", "word", None, "--text word: CoNLL files have no header"),
        ("\n\n", None, None, "holds no sentences"),
    ],
)
def test_what_is_no_conll_is_named_with_its_line(table, text, word, tag, message):
    path = table("a.txt", text)
    with pytest.raises(UserError, match=message):
        read_conll(path, word, tag)


def test_conllu_is_read_as_it_is(tmp_path):
    """Comments, ranges and empty nodes are no words; columns have names; compressed or not."""
    row = "{}\t{}\t{}\t{}\tNN\tCase=Nom|Number=Sing\t0\troot\t_\t_"
    lines = [
        "# text = a\tcomment with a tab",
        row.format("1-2", "im", "_", "_"),
        row.format("1", "in", "in", "ADP"),
        row.format("2", "dem", "der", "DET"),
        row.format("2.1", "nothing", "_", "_"),
        row.format("3", "#", "#", "SYM"),
    ]
    path = tmp_path / "a.conllu.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    file = read_conll(path)
    assert (file.words, file.tags, file.numbers) == ([["in", "dem", "#"]], [["ADP", "DET", "SYM"]], [[3, 4, 6]])
    assert read_conll(path, None, "feats").tags == [["Case=Nom|Number=Sing"] * 3]
    assert read_conll(path, "LEMMA", "upos").words == [["in", "der", "#"]]
    assert read_words(path) == file.words
    with pytest.raises(UserError, match=r"--label pos: no column of CoNLL-U \(did you mean '[ux]pos'\?\)"):
        read_conll(path, None, "pos")


def test_a_line_that_lost_a_column_is_named(table):
    path = table("a.conllu", CONLLU + "1\tHaus\tHaus\tNOUN\t_\t_\t_\t_\t_\n")
    with pytest.raises(UserError, match=r"a.conllu:7: not a line of CoNLL-U, which has 10 columns"):
        read_conll(path)


def test_ten_columns_with_a_word_in_front_are_not_conllu(table):
    assert read_conll(table("a.tsv", "now" + "\t_" * 8 + "\tO\n")).words == [["now"]]


def test_the_ending_tells_words_and_tags():
    assert all(map(is_conll, ["a.conllu", "b.CONLL.gz", "c.iob2"]))
    assert not any(map(is_conll, ["a.csv", "conllu", "b.tsv.gz"]))
