"""Tables: the same rows from every format, and a file that is not what its name says is noticed; CoNLL's variants."""

import gzip
import json

import pyarrow
import pytest
from pyarrow import parquet

from latemask import UserError
from latemask.evaluation.tables import read_conll, read_table, read_words

ROWS = [{"text": 'a "quoted", text', "label": "x"}, {"text": "two\nlines", "label": "y"}, {"text": "", "label": "x"}]
CONLL2003 = "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n\nPeter NNP B-NP B-PER\n"
CONLLU = (
    "# sent_id = 1\n# text = im Haus\n1-2\tim\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "1\tin\tin\tADP\t_\t_\t_\t_\t_\t_\n2\tdem\tder\tDET\t_\t_\t_\t_\t_\t_\n\n"
)


def write(folder, ending):
    path = folder / f"rows.{ending}"
    if ending.startswith("csv"):
        text = 'text,label\n"a ""quoted"", text",x\n"two\nlines",y\n"",x\n'
        path.write_bytes(gzip.compress(text.encode()) if ending.endswith("gz") else text.encode())
    elif ending == "jsonl":
        path.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n\n")
    else:
        parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    return path


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "jsonl", "parquet"])
def test_every_format_gives_the_same_columns(tmp_path, ending):
    table = read_table(write(tmp_path, ending))
    assert table.values("text", "--text") == [row["text"] for row in ROWS]
    assert table.values("label", "--label") == ["x", "y", "x"]


def test_a_row_knows_its_line(tmp_path):
    assert read_table(write(tmp_path, "csv")).where(2).endswith("rows.csv:5")
    assert read_table(write(tmp_path, "jsonl")).where(2).endswith("rows.jsonl:3")
    assert read_table(write(tmp_path, "parquet")).where(2).endswith("rows.parquet: row 3")


def test_a_quote_in_a_tsv_is_a_character(table):
    rows = read_table(table("a.tsv", 'text\tlabel\n"open\t1\r\nplain\t0\n'))
    assert rows.values("text", "--text") == ['"open', "plain"]
    assert rows.values("label", "--label") == ["1", "0"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "text,label\nHello, world,1\n", r"a.csv:2: 3 fields, and the header has 2; a comma in a text needs"),
        ("a.csv", 'text,label\n"open,1\n', r"a.csv:2: not CSV"),
        ("a.tsv", "text\tlabel\nonly\n", r"a.tsv:2: 1 fields, and the header has 2$"),
        ("a.jsonl", "text,label\n", r"a.jsonl:1: not a JSON object"),
        ("a.jsonl", '{"text": "a"}\n[1]\n', r"a.jsonl:2: not a JSON object"),
        ("a.parquet", "text,label\na,1\n", r"a.parquet: damaged, or no parquet file"),
        ("a.csv.gz", "text,label\na,1\n", r"a.csv.gz: damaged, or no gzip file"),
        ("a.csv", "", r"a.csv: holds no rows"),
        ("a.csv", "text,label\n", r"a.csv: holds no rows"),
        ("a.txt", "text", r"a.txt: a table is needed"),
        ("a.json", "[]", r"a.json: unknown format; a file here ends in .txt, .jsonl"),
        ("a.csv", "\0\1\2\3" * 100, "looks binary"),
    ],
)
def test_a_file_that_is_not_what_it_should_be(table, name, text, message):
    path = table(name, text)
    with pytest.raises(UserError, match=message):
        read_table(path)


def test_a_missing_column_names_those_there_are(table):
    rows = read_table(table("a.csv", "review,stars,stars\na,1,2\n"))
    with pytest.raises(UserError, match=r"no column 'text' \(--text\); it has 'review', 'stars'"):
        rows.values("text", "--text")
    with pytest.raises(UserError, match="'stars' is there twice"):
        rows.values("stars", "--label")


def test_no_file_and_a_folder(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_table(tmp_path / "a.csv")
    with pytest.raises(UserError, match="is a folder; give one file"):
        read_table(tmp_path)


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
