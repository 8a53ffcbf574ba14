"""CoNLL files in their variants."""

import pytest

from latemask import UserError
from latemask.evaluation.conll import read_conll, read_words

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
