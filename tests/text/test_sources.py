"""Sources: files, folders, patterns and URLs, by name; their pieces, in groups that depend on the inputs alone."""

import gzip
from pathlib import Path

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latemask.ground.errors import UserError
from latemask.text.sources import (
    COMPRESSIONS,
    EXTENSIONS,
    LARGEST_GROUP,
    SMALLEST_GROUP,
    Piece,
    Source,
    find_sources,
    group_pieces,
    group_size,
)


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


def found(*inputs, format=None) -> list[str]:
    return [Path(source.path).name for source in find_sources(inputs, format)]


def test_every_format_and_compression_is_known_by_its_name(tmp_path):
    for extension, format in EXTENSIONS.items():
        for ending, compression in {"": None, **COMPRESSIONS}.items():
            touch(tmp_path, f"a.b{extension}{ending}".upper())
            (source,) = find_sources([tmp_path / f"a.b{extension}{ending}".upper()])
            assert (source.format, source.compression) == (format, compression)


def test_a_mixed_folder_is_read_without_what_is_hidden_or_of_another_kind(tmp_path, capsys):
    touch(tmp_path, "b.txt", "a.jsonl.zst", "deep/er/c.parquet", "notes.pdf", ".hidden.txt", ".git/d.txt", "README")
    assert found(tmp_path) == ["a.jsonl.zst", "b.txt", "c.parquet"]
    assert "2 of its files are of other formats and left out" in capsys.readouterr().err


def test_patterns_leave_hidden_files_out_unless_they_mean_them(tmp_path):
    touch(tmp_path, "a.txt", ".b.txt", "deep/c.txt")
    assert found(f"{tmp_path}/*.txt") == ["a.txt"]
    assert found(f"{tmp_path}/.*.txt") == [".b.txt"]
    assert found(f"{tmp_path}/**/*.txt") == ["a.txt", "c.txt"]


def test_each_file_comes_once_in_the_order_of_the_inputs(tmp_path):
    touch(tmp_path, "a.txt", "b.txt")
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    assert found(tmp_path / "b.txt", tmp_path) == ["b.txt", "a.txt"]


def test_a_name_that_looks_like_a_pattern_or_a_url_is_a_name_if_it_is_there(tmp_path):
    touch(tmp_path, "a[1].txt", "b:c.txt", "d?.txt")
    assert found(tmp_path / "a[1].txt", tmp_path / "b:c.txt", tmp_path / "d?.txt") == ["a[1].txt", "b:c.txt", "d?.txt"]


def test_the_format_can_be_said(tmp_path):
    touch(tmp_path, "a.json", "b.data.gz", "c")
    assert {(s.format, s.compression) for s in find_sources([tmp_path], "jsonl")} == {
        ("jsonl", None),
        ("jsonl", "gzip"),
    }
    assert found(tmp_path / "c", format="txt") == ["c"]


def test_paths_are_shown_as_they_were_given(tmp_path, monkeypatch):
    touch(tmp_path, "corpus/a.txt")
    monkeypatch.chdir(tmp_path)
    assert find_sources(["corpus"])[0].path == "corpus/a.txt"
    assert find_sources([tmp_path / "corpus"])[0].path == str(tmp_path / "corpus" / "a.txt")
    assert find_sources(["corpus"])[0].location == str(tmp_path / "corpus" / "a.txt")


def test_urls_are_files_folders_and_patterns_too():
    memory = fsspec.filesystem("memory")
    memory.pipe({"/bucket/a.txt": b"one", "/bucket/deep/b.jsonl.gz": gzip.compress(b'{"text": "two"}')})
    folder = find_sources(["memory://bucket"])
    assert (folder[0].path, folder[0].format, folder[0].size) == ("memory:///bucket/a.txt", "txt", 3)
    assert len(folder) == 2
    assert [s.path for s in find_sources(["memory://bucket/*.txt"])] == ["memory:///bucket/a.txt"]
    with find_sources(["memory://bucket/a.txt"])[0].open() as file:
        assert file.read() == b"one"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "INPUT is empty"),
        ("nothing.txt", "no such file or folder"),
        ("memory://nowhere/x.txt", "no such file or folder"),
        ("nonsense://x/y.txt", "cannot be opened"),
        ("s3://bucket/x.txt", r"reading s3:// needs one more package .*s3fs"),
        ("folder", "holds no file that latemask reads"),
        ("folder/*", "holds no file that latemask reads"),
        ("folder/*.txt", "matches no file"),
        ("folder/a.pdf", r"unknown format; latemask reads \.txt.*--format"),
    ],
)
def test_what_cannot_be_found_is_said_in_one_line(tmp_path, monkeypatch, given, message):
    touch(tmp_path, "folder/a.pdf")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message) as caught:
        find_sources([given])
    assert "\n" not in str(caught.value)


def source(size: int, format: str = "txt", compression: str | None = None, name: str = "a") -> Source:
    return Source(name, f"/{name}", False, format, compression, size, "")


SOURCES = st.lists(
    st.builds(
        source,
        st.integers(0, 40 * SMALLEST_GROUP),
        st.sampled_from(["txt", "jsonl", "csv", "parquet"]),
        st.sampled_from([None, "gzip"]),
        st.uuids().map(str),
    ),
    min_size=1,
    max_size=30,
)


@given(SOURCES)
def test_every_byte_is_in_exactly_one_group_in_order(found):
    pieces = [piece for group in group_pieces(found) for piece in group]
    position: dict[str, int] = {}
    for piece in pieces:
        assert piece.start == position.get(piece.source.path, 0)
        position[piece.source.path] = min(piece.end, piece.source.size)
    assert [piece.source for piece in pieces if piece.start == 0] == found
    assert all(position[source.path] == source.size for source in found)


@given(SOURCES)
def test_groups_that_can_be_split_are_of_one_size(found):
    limit = group_size(sum(Piece(source).text_size for source in found))
    for group in group_pieces(found):
        sizes = [piece.text_size for piece in group]
        assert len(group) == 1 or sum(sizes) <= limit
        if not group[0].source.compression and group[0].source.format in ("txt", "jsonl"):
            assert sum(sizes) < 2 * limit


def test_small_files_share_a_group_and_large_ones_are_split():
    assert len(group_pieces([source(1000, name=str(n)) for n in range(500)])) == 1
    assert len(group_pieces([source(10 * SMALLEST_GROUP)])) == 10
    assert len(group_pieces([source(10 * SMALLEST_GROUP, compression="gzip")])) == 1


def test_the_number_of_groups_stays_within_reason():
    assert group_size(0) == SMALLEST_GROUP
    assert group_size(10**12) == LARGEST_GROUP
    assert len(group_pieces([source(10**11, name=str(n)) for n in range(10)])) < 5000
