"""Reading: files, folders, globs; what cannot be read is named by file and line."""

import gzip
import json
from pathlib import Path

import pytest

from latemask.errors import UserError
from latemask.text.corpus import CorpusReader, Problems, find_sources


def read(*inputs, strict=False) -> tuple[list[str], Problems]:
    problems = Problems(strict)
    reader = CorpusReader(find_sources(inputs), problems)
    return [document.text for document in reader.run()], problems


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


def test_folders_globs_and_gzip_in_a_stable_order_each_file_once(tmp_path):
    (tmp_path / "deep").mkdir()
    write(tmp_path / "b.txt", "b")
    write(tmp_path / "deep" / "c.jsonl", '{"text": "c"}')
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"a"))
    write(tmp_path / "notes.pdf", "not read")
    write(tmp_path / ".hidden.txt", "not read")
    assert read(tmp_path)[0] == ["a", "b", "c"]
    assert read(str(tmp_path / "*.txt*"))[0] == ["a", "b"]
    assert read(tmp_path / "b.txt", tmp_path)[0] == ["b", "a", "c"]


def test_odd_characters_survive(tmp_path):
    text = "nul \x00 and \u202eright-to-left\u202c and \U0001f600 and " + "x" * 100_000
    assert read(write(tmp_path / "odd [1] 名.txt", text))[0] == [text]


def test_broken_jsonl_lines_are_skipped_counted_and_named(tmp_path):
    lines = [
        '{"text": "fine"}',
        "{broken",
        '{"title": "no text"}',
        "[1]",
        '{"text": 3}',
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
        ("a.txt", bytes(range(256)) * 10, "looks binary"),
        ("a.txt", "utf-16 text".encode("utf-16"), "looks binary or UTF-16"),
        ("a.txt", b"", "holds no text"),
        ("a.txt", b"\n \n\n", "holds no text"),
        ("a.jsonl", b"{broken", r"holds no text; first problem: .*a\.jsonl:1: not JSON"),
        ("a.txt.gz", b"not gzip", "damaged gzip"),
        ("a.txt.gz", gzip.compress(b"some text " * 1000)[:-20], "damaged gzip"),
        ("a.pdf", b"text", r"unknown format; latemask reads \.txt"),
    ],
)
def test_a_file_that_is_not_text_is_named(tmp_path, name, content, message):
    with pytest.raises(UserError, match=message):
        read(write(tmp_path / name, content))


def test_a_missing_file_an_empty_folder_and_a_glob_without_match_are_named(tmp_path):
    for given, message in [
        ("nothing.txt", "no such file"),
        (".", "holds no .txt"),
        ("*.txt", "holds no .txt"),
    ]:
        with pytest.raises(UserError, match=message):
            read(str(tmp_path / given))


def test_an_empty_file_in_a_folder_is_skipped_with_a_count(tmp_path):
    write(tmp_path / "a.txt", "")
    write(tmp_path / "b.txt", "text")
    texts, problems = read(tmp_path)
    assert (texts, problems.count) == (["text"], 1)


def test_control_characters_of_a_file_name_do_not_reach_the_terminal(tmp_path):
    with pytest.raises(UserError) as caught:
        read(write(tmp_path / "a\x1b[31m.txt", ""))
    assert "\x1b" not in str(caught.value)


def test_progress_adds_up_to_the_size_of_the_files(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"line\n" * 50_000))
    steps: list[int] = []
    list(CorpusReader(find_sources([path]), Problems(), on_bytes=steps.append).run())
    assert sum(steps) == path.stat().st_size
