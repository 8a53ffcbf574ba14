"""Reading: all formats, plain and compressed; what cannot be read is named by file and line."""

import bz2
import errno
import gzip
import json
import lzma
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latemask.ground.errors import UserError
from latemask.text import lines, sources
from latemask.text.progress import Meter
from latemask.text.reading import FilesReader, Problems
from latemask.text.sources import Piece, find_sources, group_pieces


def read(*inputs, strict=False, text_field="text", format=None) -> tuple[list[str], Problems]:
    problems = Problems(strict)
    planned = group_pieces(find_sources(inputs, format))
    reader = FilesReader(planned, problems, text_field=text_field)
    return [document.text for rank in range(len(planned)) for document in reader.run(rank=rank)], problems


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode("utf-8") if isinstance(text, str) else text)
    return path


def test_documents_of_a_text_file_are_parted_by_empty_lines(tmp_path):
    path = write(tmp_path / "a.txt", "\n\none\nstill one\n  \n\ntwo\r\n\r\nthree")
    assert read(path)[0] == ["one\nstill one", "two", "three"]


def test_a_byte_order_mark_is_not_text(tmp_path):
    assert read(write(tmp_path / "a.txt", b"\xef\xbb\xbfone\n"))[0] == ["one"]


def test_jsonl_documents_may_hold_empty_lines(tmp_path):
    path = write(tmp_path / "a.jsonl", json.dumps({"text": "a\n\nb", "id": 3}) + "\n\n" + json.dumps({"text": "c"}))
    assert read(path)[0] == ["a\n\nb", "c"]


def test_odd_characters_survive(tmp_path):
    text = "nul \x00 and \u202eright-to-left\u202c and \U0001f600 and " + "x" * 100_000
    assert read(write(tmp_path / "odd [1] 名.txt", text))[0] == [text]


def test_broken_jsonl_lines_are_skipped_counted_and_named(tmp_path):
    lines = [
        '{"text": "fine"}',
        "{broken",
        '{"title": "no text"}',
        "[1]",
        '{"text": ""}',
        r'{"text": "\ud800"}',
        '{"text": "end"}',
    ]
    path = write(tmp_path / "a.jsonl", "\n".join(lines))
    texts, problems = read(path)
    assert texts == ["fine", "end"]
    assert problems.count == 5
    assert problems.examples[0] == f"{path}:2: not JSON"
    assert problems.examples[1] == f"{path}:3: no 'text' in it"
    assert "surrogate" in problems.examples[4]


def test_strict_stops_at_the_first_broken_line(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "fine"}\n{broken\n')
    with pytest.raises(UserError, match=r"a\.jsonl:2: not JSON"):
        read(path, strict=True)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"fine\nbad \xff\xfe here", r"a\.txt:2: not valid UTF-8"),
        ("a.txt", b"fine\ntorn \xc3", "the last line: not valid UTF-8"),
        ("a.txt", bytes(range(256)) * 10, "looks binary"),
        ("a.txt", "utf-16 text".encode("utf-16"), "looks binary or UTF-16"),
        ("a.txt", b"", "holds no text"),
        ("a.txt", b"\n \n\n", "holds no text"),
        ("a.jsonl", b"{broken", r"holds no text; first problem: .*a\.jsonl:1: not JSON"),
        ("a.txt.gz", b"not gzip", "damaged, or no gzip file"),
        ("a.txt.gz", gzip.compress(b"some text " * 1000, mtime=0)[:-20], "damaged, or no gzip file"),
    ],
)
def test_a_file_that_is_not_text_is_named(tmp_path, name, content, message):
    with pytest.raises(UserError, match=message):
        read(write(tmp_path / name, content))


def test_an_empty_file_in_a_folder_is_skipped_with_a_count(tmp_path):
    write(tmp_path / "a.txt", "")
    write(tmp_path / "b.txt", "text")
    texts, problems = read(tmp_path)
    assert (texts, problems.count) == (["text"], 1)


def test_control_characters_of_a_file_name_do_not_reach_the_terminal(tmp_path):
    with pytest.raises(UserError) as caught:
        read(write(tmp_path / "a\x1b[31m.txt", ""))
    assert "\x1b" not in str(caught.value)


PACK = {
    "": lambda content: content,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda content: pa.compress(content, "zstd", asbytes=True),
}
TEXTS = ["one line", 'two\nlines, a comma and a "quote"', "Ελληνικά 名 \U0001f600 " + "x" * 3000, "the end"]


def table(texts=TEXTS, column="text") -> pa.Table:
    return pa.table({"id": list(range(len(texts))), column: texts})


def in_format(format: str, column: str = "text") -> bytes:
    """TEXTS as a file of a format, written by somebody else than us where there is somebody else."""
    sink = pa.BufferOutputStream()
    if format == "parquet":
        pyarrow.parquet.write_table(table(column=column), sink, row_group_size=2)
    elif format == "arrow":
        with pa.ipc.new_file(sink, table(column=column).schema) as writer:
            writer.write_table(table(column=column), max_chunksize=2)
    elif format == "arrow stream":
        with pa.ipc.new_stream(sink, table(column=column).schema) as writer:
            writer.write_table(table(column=column))
    elif format == "csv":
        return table(column=column).to_pandas().to_csv(index=False).encode("utf-8")
    elif format == "jsonl":
        return "\n".join(json.dumps({column: text}) for text in TEXTS).encode("utf-8")
    else:
        return "\n\n".join(TEXTS).encode("utf-8")
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("format", ["txt", "jsonl", "csv", "parquet", "arrow", "arrow stream"])
def test_every_format_in_every_compression_gives_the_same_documents(tmp_path, format, ending):
    path = write(tmp_path / f"a.{format.split()[0]}{ending}", PACK[ending](in_format(format)))
    assert read(path)[0] == TEXTS


def test_a_tab_separated_file_has_no_quoting(tmp_path):
    path = write(tmp_path / "a.tsv", 'id\ttext\n1\t"Well, he said\n2\tan inch is "\n3\n\n')
    texts, problems = read(path)
    assert texts == ['"Well, he said', 'an inch is "']
    assert problems.examples == [f"{path}:4: no 'text' in it"]


@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet", "arrow", "arrow stream"])
def test_another_column_can_hold_the_text_and_a_missing_one_is_named(tmp_path, format):
    path = write(tmp_path / f"a.{format.split()[0]}", in_format(format, "body"))
    assert read(path, text_field="body")[0] == TEXTS
    message = "no 'text' in it" if format == "jsonl" else "no column 'text'; it has 'id', 'body'.*--text-field"
    with pytest.raises(UserError, match=message):
        read(path)


def test_a_quote_that_is_never_closed_does_not_swallow_the_rest(tmp_path):
    path = write(tmp_path / "a.csv", 'text\nfine\n"open\nmore\nrows\n')
    with pytest.raises(UserError, match=r"a\.csv:\d: not CSV"):
        read(path)


def test_a_column_that_is_not_text_is_said(tmp_path):
    path = write(tmp_path / "a.parquet", in_format("parquet"))
    with pytest.raises(UserError, match="its 'id' is int, not text"):
        read(path, text_field="id")


@pytest.mark.parametrize("ending", PACK)
def test_an_empty_file_is_empty_whatever_its_name(tmp_path, ending):
    with pytest.raises(UserError, match="holds no text"):
        read(write(tmp_path / f"a.txt{ending}", b""))


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_rows_without_text_are_counted(tmp_path, format):
    texts = ["fine", None, "  ", "end"]
    sink = pa.BufferOutputStream()
    if format == "parquet":
        pyarrow.parquet.write_table(table(texts), sink)
    else:
        with pa.ipc.new_file(sink, table(texts).schema) as writer:
            writer.write_table(table(texts))
    path = write(tmp_path / f"a.{format}", sink.getvalue().to_pybytes())
    found, problems = read(path)
    assert (found, problems.count) == (["fine", "end"], 2)
    assert problems.examples[0] == f"{path}: row 2: no 'text' in it"


@pytest.mark.parametrize("ending", [ending for ending in PACK if ending])
@pytest.mark.parametrize("harm", ["truncated", "not compressed"])
def test_a_damaged_compressed_file_is_never_taken_for_a_whole_one(tmp_path, ending, harm):
    content = "\n\n".join(f"document {n} " * 20 for n in range(5000)).encode()
    packed = PACK[ending](content)
    path = write(tmp_path / f"a.txt{ending}", packed[: len(packed) // 2] if harm == "truncated" else content)
    with pytest.raises(UserError, match=rf"a\.txt{ending}: damaged, or no \w+ file"):
        read(path)


def test_compressed_files_that_were_appended_to_one_another_are_read_to_the_end(tmp_path):
    for ending, pack in PACK.items():
        assert read(write(tmp_path / f"a.txt{ending}", pack(b"one\n\n") + pack(b"two")))[0] == ["one", "two"]


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_a_damaged_table_is_named(tmp_path, format):
    path = write(tmp_path / f"a.{format}", in_format(format)[:-30])
    with pytest.raises(UserError, match=rf"a\.{format}: damaged, or no {format} file"):
        read(path)


def test_a_vanished_file_is_named(tmp_path):
    path = write(tmp_path / "a.txt", "text")
    reader = FilesReader([[Piece(find_sources([path])[0])]], Problems())
    path.unlink()
    with pytest.raises(UserError, match=r"a\.txt: cannot be read \(No such file"):
        list(reader.run())


def test_a_full_disk_is_not_taken_for_a_file_that_cannot_be_read(tmp_path):
    meter = Meter()
    meter.show = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    pieces = group_pieces(find_sources([write(tmp_path / "a.txt", "text")]))
    with pytest.raises(OSError, match="No space left"):
        list(FilesReader(pieces, Problems(), meter).run())


def test_documents_and_lines_of_any_length_are_cut_and_nothing_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "LONGEST_LINE", 1000)
    words = [f"word{n}é" for n in range(5000)]
    for content in (" ".join(words), "\n".join(words)):
        texts, _ = read(write(tmp_path / "a.txt", content))
        with monkeypatch.context() as patch:
            patch.setattr(lines, "LONGEST_DOCUMENT", 700)
            texts = [section.text for text in texts for section in lines.cut(text)]
        assert max(map(len, texts)) <= 700
        assert " ".join(texts).split() == words


def test_a_long_document_becomes_several(tmp_path):
    text = "some words " * 50_000
    for name, content in (("a.txt", text), ("a.jsonl", json.dumps({"text": text})), ("a.csv", f"text\n{text}")):
        texts, _ = read(write(tmp_path / name, content))
        assert len(texts) == 3
        assert max(map(len, texts)) <= lines.LONGEST_DOCUMENT
        assert " ".join(texts).split() == text.split()


def test_a_line_too_long_to_hold_is_skipped_with_its_number(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "LONGEST_LINE", 1000)
    rows = [json.dumps({"text": text}) for text in ("fine", "x" * 3500, "end")]
    path = write(tmp_path / "a.jsonl", "\n".join(rows))
    texts, problems = read(path)
    assert texts == ["fine", "end"]
    assert problems.examples[0].startswith(f"{path}:2: longer than")


documents = st.lists(
    st.lists(st.sampled_from(["a", "bb c", "é", "long " * 9]), min_size=1, max_size=3), min_size=1, max_size=12
)


@given(
    documents, st.lists(st.sampled_from(["\n", "\n\n", " \n", "\r\n\r\n"]), min_size=12, max_size=12), st.integers(1, 9)
)
def test_pieces_of_a_text_file_hold_every_document_once(tmp_path_factory, texts, gaps, count):
    path = tmp_path_factory.mktemp("pieces") / "a.txt"
    content = "".join("\n".join(text) + "\n" + gap for text, gap in zip(texts, gaps, strict=False))
    path.write_bytes(content.encode("utf-8"))
    (source,) = find_sources([path])
    cuts = [*sorted({source.size * part // count for part in range(count)}), 10**9]
    pieces = [Piece(source, start, end) for start, end in pairwise(cuts)]
    whole = FilesReader([[Piece(source)]], Problems())
    parts = FilesReader([[piece] for piece in pieces], Problems())
    expected = [document.text for document in whole.run()]
    assert [document.text for rank in range(len(pieces)) for document in parts.run(rank=rank)] == expected
    assert expected == ["\n".join(text).rstrip("\n") for text in texts]


def test_pieces_of_a_jsonl_file_hold_every_line_once(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "SMALLEST_GROUP", 100)
    texts = [f"line {n} " + "é" * (n % 50) for n in range(100)]
    path = write(tmp_path / "a.jsonl", "\n".join(json.dumps({"text": text}, ensure_ascii=False) for text in texts))
    assert len(group_pieces(find_sources([path]))) > 20
    assert read(path)[0] == texts


def test_in_the_middle_of_a_file_a_problem_is_named_by_its_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "SMALLEST_GROUP", 100)
    content = '{"text": "fine"}\n' * 20 + "{broken\n" + '{"text": "fine"}\n' * 20
    path = write(tmp_path / "a.jsonl", content)
    texts, problems = read(path)
    assert len(texts) == 40
    assert problems.examples == [f"{path}:byte {content.index('{broken')}: not JSON"]


def test_progress_adds_up_to_the_size_of_the_files(tmp_path):
    path = write(tmp_path / "a.txt.gz", gzip.compress(b"line\n" * 50_000))
    meter = Meter()
    list(FilesReader(group_pieces(find_sources([path])), Problems(), meter).run())
    assert meter.finished == path.stat().st_size
