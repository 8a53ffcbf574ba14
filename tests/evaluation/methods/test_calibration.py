"""Texts to fit on: real sentences with what a tokenizer puts around them, the same ones every time."""

import pytest
import torch

from latemask import UserError
from latemask.evaluation.methods.calibration import Texts, batches_of, texts_in
from latemask.evaluation.protocol import Protocol
from latemask.evaluation.trials import prepare_task
from tests.evaluation.conftest import make_task


@pytest.fixture(params=["classification", "tagging"])
def prepared(encoder, request):
    return prepare_task(encoder, make_task(request.param), Protocol(max_length=16))


def rows_in(batches):
    return [ids[mask.bool()].tolist() for one in batches
            for ids, mask in zip(one.inputs["input_ids"], one.inputs["attention_mask"], strict=True)]  # fmt: skip


def test_the_tasks_rows_are_drawn_without_labels_and_padded_to_about_the_same_length(prepared):
    batches = batches_of(prepared, None, 20)
    assert [len(one) for one in batches] == [8, 8, 4]
    assert all("labels" not in one.inputs for one in batches)
    found, known = rows_in(batches), [row["input_ids"] for row in prepared.splits["train"].rows]
    assert all(row in known for row in found)
    assert [len(row) for row in found] == sorted(len(row) for row in found)
    assert rows_in(batches_of(prepared, None, 20)) == found
    assert sorted(rows_in(batches_of(prepared, None, 999))) == sorted(known)  # all that there are


def test_a_files_lines_are_texts_with_special_tokens_cut_to_the_length(prepared, tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(f"a line that is number {number}  " for number in range(30)) + "\n\n \n" + "x " * 99)
    tokenizer = prepared.encoder.tokenizer
    found = rows_in(batches_of(prepared, str(file), 31))
    assert tokenizer("a line that is number 7").input_ids in found
    assert len(found) == 31
    assert max(map(len, found)) == 16
    assert len(rows_in(batches_of(prepared, str(file), 5))) == 5


def test_what_is_padding_is_not_seen():
    texts = Texts({"input_ids": torch.ones(2, 3), "attention_mask": torch.tensor([[1, 1, 0], [1, 0, 0]])})
    value = torch.arange(12.0).view(2, 3, 2)
    assert texts.seen(value).tolist() == [[0, 1], [2, 3], [6, 7]]
    assert torch.equal(texts.seen((value, None)), texts.seen(value))


def test_a_drawn_part_of_a_file_is_not_its_beginning(tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(map(str, range(1000))))
    drawn = sorted(map(int, texts_in(file, 100)))
    assert len(set(drawn)) == 100
    assert 350 < sum(drawn) / 100 < 650
    assert texts_in(file, 100) == texts_in(file, 100)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"cannot be read \(No such file or directory\): give a file with one text a line"),
        (b"", r"has 0 texts, not 4: give a file with one text a line"),
        (b"\n \n", r"has 0 texts, not 4"),
        (b"one\ntwo\n", r"has 2 texts, not 4: give more, or --apiq.samples 2"),
        (b"\xff\xfe\x00", r"is no UTF-8 text"),
    ],
)
def test_no_texts_are_a_line(content, message, tmp_path):
    if content is not None:
        (tmp_path / "t.txt").write_bytes(content)
    with pytest.raises(UserError, match=message):
        texts_in(tmp_path / "t.txt", 4)
    with pytest.raises(UserError, match="cannot be read"):
        texts_in(tmp_path, 4)
