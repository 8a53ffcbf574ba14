"""Tables: the same rows from every format, and a file that is not what its name says is noticed."""

import gzip
import json

import pyarrow
import pytest
from pyarrow import parquet

from latemask import UserError
from latemask.evaluation.tables import read_table

ROWS = [{"text": 'a "quoted", text', "label": "x"}, {"text": "two\nlines", "label": "y"}, {"text": "", "label": "x"}]


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
        (
            "a.csv",
            "text,label\nHello, world,1\n",
            r"a.csv:2: 3 fields, and the header has 2; a text that holds the delimiter needs",
        ),
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


@pytest.mark.parametrize(("delimiter", "shown"), [(";", ";"), ("|", "|"), ("\t", "\\t")])
def test_a_csv_without_commas_is_recognised_and_it_is_said(table, capsys, delimiter, shown):
    rows = read_table(table("a.csv", f'"text"{delimiter}"label"\n"one, two{delimiter} three"{delimiter}x\n'))
    assert (rows.columns, rows.rows) == (["text", "label"], [[f"one, two{delimiter} three", "x"]])
    assert f"a.csv: its fields are separated by '{shown}'" in capsys.readouterr().err


def test_what_separates_the_fields_can_be_said(table, capsys):
    assert read_table(table("a.csv", "text#label\na, b#x\n"), "#").rows == [["a, b", "x"]]
    assert read_table(table("a.tsv", "text;label\na\tb;x\n"), ";").rows == [["a\tb", "x"]]
    assert read_table(table("b.tsv", 'text\tlabel\n"a\tx\n'), "tab").rows == [['"a', "x"]]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("header", ["text,la;bel", '"one;column"', "text"])
def test_a_semicolon_in_a_name_separates_nothing(table, capsys, header):
    read_table(table("a.csv", f"{header}\n{'a,b' if ',' in header else 'a'}\n"))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "delimiter", "message"),
    [
        ("a.csv", ";;", "--delimiter ';;': one character"),
        ("a.csv", "", "--delimiter '': one character"),
        ("a.jsonl", ";", "a.jsonl: --delimiter is for CSV and TSV files"),
    ],
)
def test_a_delimiter_that_cannot_be(table, name, delimiter, message):
    path = table(name, '{"text": "a"}\n')
    with pytest.raises(UserError, match=message):
        read_table(path, delimiter)


def test_a_torn_header_says_what_may_be_wrong(table):
    rows = read_table(table("a.csv", "text, long;label\na,b;x\n"))
    with pytest.raises(UserError, match=r"no column 'label' .*; --delimiter says what separates them"):
        rows.values("label", "--label")
