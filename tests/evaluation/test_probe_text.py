"""The text of probes: sentences of any language, documents that are never too few, files that are read with care."""

import gzip
import json
from itertools import pairwise

import pytest

from latemask import UserError
from latemask.evaluation.probe_text import own_text, paragraphs, sentences, units


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One ends. Another begins! Does it? Yes", ["One ends.", "Another begins!", "Does it?", "Yes"]),
        ("He paid 3.5 per cent, e.g. in May… and left.", ["He paid 3.5 per cent, e.g. in May… and left."]),
        ("“Stop!” he said. (It was late.) She left.", ["“Stop!” he said.", "(It was late.)", "She left."]),
        ("a line that is\nwrapped. Another\n- one\nText", ["a line that is wrapped.", "Another", "- one", "Text"]),
        ("我喜欢读书。你呢？他说：“好！”走了", ["我喜欢读书。", "你呢？", "他说：“好！”", "走了"]),
        ("यह पहला वाक्य है। यह दूसरा है।", ["यह पहला वाक्य है।", "यह दूसरा है।"]),
        ("هل هذا سؤال؟ نعم. انتهى", ["هل هذا سؤال؟", "نعم.", "انتهى"]),
        ("ฉันชอบอ่านหนังสือ เธอชอบเขียน", ["ฉันชอบอ่านหนังสือ", "เธอชอบเขียน"]),
        ("Это первое. Это второе, т. е. последнее.", ["Это первое.", "Это второе, т. е. последнее."]),
    ],
)
def test_sentences_end_at_the_punctuation_of_their_script_and_at_lines(text, expected):
    assert list(sentences(text)) == expected


def test_units_are_words_or_where_there_are_no_spaces_characters_with_their_marks():
    assert units("Zwei Wörter 中") == ["Zwei", "Wörter", "中"]
    assert units("我喜欢书") == ["我", "喜", "欢", "书"]
    assert units("ที่นี่") == ["ที่", "นี่"]
    assert all("".join(units(text)) == text for text in ("読む本だ。", "ကျွန်တော်"))


def test_what_is_too_short_or_no_words_parts_its_neighbours():
    good = [f"Sentence number {word} has six words." for word in ("one", "two", "three")]
    assert list(paragraphs(" ".join(good))) == [good]
    for other in ("Short.", "1 2 3 4 5 6 7.", "No No No No No No", "Word " * 41 + "."):
        found = list(paragraphs(f"{good[0]}\n{other}\n{good[1]} {good[2]}"))
        assert found == [good[:1], good[1:]], other
    assert list(paragraphs(f"{good[0]}\n\n{good[1]}")) == [good[:1], good[1:2]]


def numbered(first: int, last: int) -> str:
    return " ".join(f"This is the sentence with number {number}." for number in range(first, last))


def test_a_book_is_cut_to_stretches_that_hold_every_sentence_once_and_in_order(table):
    path = table("book.txt", numbered(0, 1000))
    found = own_text([path])
    assert found.origin == "file"
    assert [len(document.sentences) for document in found.documents] == [50] * 20
    assert " ".join(sentence for document in found.documents for sentence in document.sentences) == numbered(0, 1000)


def test_short_documents_stay_whole(table):
    path = table("many.txt", "\n\n".join(numbered(9 * number, 9 * number + 9) for number in range(60)))
    assert [len(document.sentences) for document in own_text([path]).documents] == [9] * 60


def test_neighbours_stay_neighbours_in_a_stretch_of_many_paragraphs(table):
    path = table("a.jsonl", json.dumps({"text": "\n\n".join(numbered(7 * n, 7 * n + 7) for n in range(40))}))
    found = [paragraph for document in own_text([path]).documents for paragraph in document.paragraphs]
    numbers = [[int(sentence.split()[-1][:-1]) for sentence in paragraph] for paragraph in found]
    assert [number for row in numbers for number in row] == list(range(280))
    assert all(after == before + 1 for row in numbers for before, after in pairwise(row))


def test_files_of_any_format_and_folders_are_read_and_called_by_their_names(table, tmp_path):
    table("a.txt", numbered(0, 3))
    table("b.jsonl", json.dumps({"body": numbered(3, 6)}) + '\n{"title": "no body"}\n')
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(f'body\n"{numbered(6, 9)}"\n'.encode()))
    found = own_text([tmp_path], text_field="body")
    assert [(document.origin, len(document.sentences)) for document in found.documents] == [
        ("a.txt", 3),
        ("b.jsonl", 3),
        ("c.csv.gz", 3),
    ]


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path):
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text(numbered(0, 3))
    assert len({document.origin for document in own_text([tmp_path]).documents}) == 2


def test_with_a_label_every_row_is_a_document_of_its_class(table):
    path = table("a.csv", f"body,mood\n{numbered(0, 2)},glad\n{numbered(2, 4)},sad\n{numbered(4, 6)},\nshort,sad\n")
    found = own_text([path], "body", "mood")
    assert found.origin == "label"
    assert [(document.origin, len(document.sentences)) for document in found.documents] == [("glad", 2), ("sad", 2)]


def test_what_cannot_be_read_is_said(table, tmp_path):
    with pytest.raises(UserError, match="no such file"):
        own_text([tmp_path / "nothing.txt"])
    with pytest.raises(UserError, match=r"no column 'mood'.*--label"):
        own_text([table("a.csv", "text,label\nx,y\n")], label="mood")
    with pytest.raises(UserError, match="a table is needed"):
        own_text([table("a.txt", "x")], label="mood")
    with pytest.raises(UserError, match="holds no text"):
        own_text([table("empty.txt", "\n")])


def test_a_large_file_is_read_to_a_limit_which_is_said(table, monkeypatch, capsys):
    monkeypatch.setattr("latemask.evaluation.probe_text._MOST_CHARACTERS", 500)
    path = table("many.txt", "\n\n".join(numbered(9 * number, 9 * number + 9) for number in range(60)))
    assert len(own_text([path]).documents) == 2
    assert "first 500 characters" in capsys.readouterr().err


def test_builtin_sentences_are_prose(builtin):
    sentences = [sentence for document in builtin.documents for sentence in document.sentences]
    assert len(sentences) > 2000
    assert all(6 <= len(sentence.split()) <= 40 and ">>>" not in sentence for sentence in sentences)
    assert {"python", "numpy", "networkx"} <= {document.origin for document in builtin.documents}
