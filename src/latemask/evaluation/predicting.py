"""`latemask predict`: a fine-tuned model + a file, or what comes in on standard input → labels."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

from latemask.evaluation.conll import read_words, words_of
from latemask.evaluation.predictor import Predictor
from latemask.evaluation.tables import open_source, read_table, whole_lines
from latemask.evaluation.tasks import Examples
from latemask.ground.console import json_line, printable, say
from latemask.ground.errors import UserError
from latemask.ground.files import refuse_or_pass, write_text_atomically

STANDARD_INPUT = "-"
_INPUT_NAME = "standard input"
_BLOCK = 1 << 16  # bytes that are read, labelled and written together
_SEPARATOR = ";"  # between several labels of one row


def predict(
    model: Path,
    file: Path,
    *,
    text: str | None = None,
    text_pair: str | None = None,
    delimiter: str | None = None,
    out: Path | None = None,
    scores: bool = False,
    json: bool = False,
    overwrite: bool = False,
) -> list[dict[str, Any]]:
    """Label a file with a fine-tuned model: one line for each of its rows, in their order.

    Of standard input nothing is returned, as it may never end.

    Args:
        model: Folder that `latemask finetune` wrote, or any fine-tuned Hugging Face classifier or tagger.
        file: CSV, TSV, JSONL or Parquet; .txt with a text in each line; for a tagger a word in each line;
            - reads lines from standard input.
        text: Column with the text; by default the one it was trained with.
        text_pair: Column with a second text; by default the one it was trained with.
        delimiter: What separates the fields of a CSV file; by default a comma, or what its header shows.
        out: File to write; by default standard output.
        scores: Write every class's probability, too, under a header that names the columns.
        json: Write JSON lines instead of tab-separated text; a classifier's have every class's probability.
        overwrite: Replace a file that --out names.
    """
    if out is not None and str(file) == STANDARD_INPUT:
        raise UserError("standard input is labelled as it comes: leave --out away, and write > FILE behind the command")
    if out is not None:
        refuse_or_pass(Path(out), [Path(file)], overwrite)
    predictor = Predictor(Path(model))
    if scores and predictor.kind == "regression":
        raise UserError("--scores: a regression gives one number, and no probabilities")
    found: list[dict[str, Any]] = []
    lines: list[str] = [] if json or not scores else [_header(predictor, text_pair)]
    for examples in _read(predictor, Path(file), text, text_pair, delimiter):
        records = predictor.label(examples, with_scores=scores)
        lines += [json_line(row) if json else _line(row, scores) for row in records]
        if out is None:
            _write(lines)
            lines = []
        if str(file) != STANDARD_INPUT:  # a stream may never end: nothing of it is kept
            found += records
    if not predictor.fit.texts:
        raise UserError(f"{_shown(Path(file))}: holds no rows")
    for line in predictor.fit.lines(_shown(Path(file)), predictor.max_length):
        say(line)
    if out is not None:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(Path(out), "".join(f"{line}\n" for line in lines))
    return found


def _write(lines: list[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()  # whoever reads the other end of a pipe waits for it


def _shown(file: Path) -> str:
    return _INPUT_NAME if str(file) == STANDARD_INPUT else printable(str(file))


def _header(predictor: Predictor, text_pair: str | None) -> str:
    classes = [printable(label) for label in predictor.labels]
    if predictor.kind == "tagging":
        return "\t".join(["word", "tag", *classes])
    pair = ["text_pair"] if text_pair or predictor.columns.get("text_pair") else []
    return "\t".join(["label", "probability", *classes, "text", *pair])


def _line(row: dict[str, Any], with_scores: bool) -> str:
    if "tags" in row:
        return "".join(f"{_word_line(row, word, with_scores)}\n" for word in range(len(row["words"])))
    if "value" in row:
        fields = [f"{row['value']:.6g}"]
    elif "labels" in row:
        shares = (f"{row['scores'][label]:.4f}" for label in row["labels"])
        fields = [_SEPARATOR.join(map(printable, row["labels"])), _SEPARATOR.join(shares)]
    else:
        fields = [printable(row["label"]), f"{row['probability']:.4f}"]
    fields += [f"{share:.4f}" for share in row["scores"].values()] if with_scores else []
    return "\t".join([*fields, *(printable(row[name]) for name in ("text", "text_pair") if name in row)])


def _word_line(row: dict[str, Any], word: int, with_scores: bool) -> str:
    shares = (row["scores"][word] or {}) if with_scores else {}
    fields = [printable(row["words"][word]), printable(row["tags"][word] or "_")]
    return "\t".join([*fields, *(f"{share:.4f}" for share in shares.values())])


def _read(
    predictor: Predictor, file: Path, text: str | None, text_pair: str | None, delimiter: str | None
) -> Iterator[Examples]:
    """Yield the texts of a file at once, or of standard input as they come; unnamed columns are the training's."""
    text = text or predictor.columns.get("text")
    text_pair = text_pair or predictor.columns.get("text_pair")
    if predictor.kind == "tagging":
        yield from (predictor.sentences(_shown(file), found) for found in _sentences(file, text, delimiter))
        return
    is_stream = str(file) == STANDARD_INPUT
    if is_stream or open_source(file).format == "txt":
        if text_pair or delimiter:
            reason = "the model takes two texts" if text_pair else "--delimiter is for tables"
            raise UserError(f"{_shown(file)}: {reason}; give a table and name its columns")
        chunks = lines_as_they_come() if is_stream else iter([_lines(file)])
        yield from (predictor.texts(_shown(file), lines) for lines in chunks)
        return
    if text is None:
        raise UserError("say which column holds the text: --text")
    table = read_table(file, delimiter)
    pairs = table.texts(text_pair, "--text-pair") if text_pair else None
    yield predictor.texts(table.source.label, table.texts(text, "--text"), pairs)


def _lines(file: Path) -> list[str]:
    return [line.text.rstrip("\r\n") for line in whole_lines(open_source(file))]


def _sentences(file: Path, text: str | None, delimiter: str | None) -> Iterator[list[list[str]]]:
    if delimiter is not None or file.suffix in (".csv", ".jsonl", ".parquet"):
        raise UserError(f"{_shown(file)}: a tagger takes a word in each line, as in CoNLL files")
    if str(file) != STANDARD_INPUT:
        yield read_words(file, text)
        return
    read = 0
    for lines in _whole_sentences(lines_as_they_come()):
        yield words_of(lines, _INPUT_NAME, text, read)
        read += len(lines)


def lines_as_they_come() -> Iterator[list[str]]:
    """Yield the lines of standard input, as many at a time as have arrived."""
    stream = cast(BufferedReader, sys.stdin.buffer)
    rest, number = b"", 0
    while block := stream.read1(_BLOCK):
        *whole, rest = (rest + block).split(b"\n")
        if whole:
            yield [_decoded(line, number + at) for at, line in enumerate(whole, 1)]
            number += len(whole)
    if rest:
        yield [_decoded(rest, number + 1)]


def _decoded(line: bytes, number: int) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r")
    except UnicodeDecodeError:
        raise UserError(f"{_INPUT_NAME}:{number}: not valid UTF-8; convert it first (iconv -t utf-8)") from None


def _whole_sentences(chunks: Iterator[list[str]]) -> Iterator[list[str]]:
    """Yield lines up to an empty one, so that no sentence is torn."""
    pending: list[str] = []
    for lines in chunks:
        pending += lines
        end = max((at for at, line in enumerate(pending, 1) if not line.strip()), default=0)
        if end:
            yield pending[:end]
            pending = pending[end:]
    yield pending
