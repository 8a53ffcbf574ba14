"""GLUE tasks from a folder in GLUE's own layout, or from the Hub."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path

from latemask.evaluation.splits import with_overlap
from latemask.evaluation.tables import checksum, open_source, place, split_at_tabs, whole_lines
from latemask.evaluation.tasks import COLA_COLUMNS, GLUE, Examples, GlueTask, Task, number_of, refuse_one_class
from latemask.ground.console import one_line, printable
from latemask.ground.errors import UserError

_HUB = "nyu-mll/glue"
_HUB_COLUMNS = {"mrpc": ("sentence1", "sentence2"), "mnli": ("premise", "hypothesis")}  # not what the files call them
_MOST_SKIPPED = 0.01  # GLUE's own QQP has a few dozen torn rows; a file with more is not what it should be
_SAME_SIZE = 0.001


def load_glue(name: str, data: Path | None) -> Task:
    """Read a GLUE task from `data`, or from the Hub without one."""
    glue = GLUE[name]
    train, dev, other = _from_hub(glue) if data is None else _from_folder(glue, data)
    parts = []
    if (rows := len(train) + train.skipped) < glue.train_rows * (1 - _SAME_SIZE):
        parts.append(f"{rows:,} of {glue.train_rows:,} training rows")
    if abs(len(dev) - glue.dev_rows) > glue.dev_rows * _SAME_SIZE:
        parts.append(f"{len(dev):,} dev rows, GLUE has {glue.dev_rows:,}")
    if glue.other_dev and other is None:
        parts.append("matched only")
    others = {} if other is None else {"mismatched": other}
    columns = {"text": glue.text, "text_pair": glue.pair}
    known = (glue.name, glue.kind, glue.labels, glue.metrics)
    task = Task(*known, train.without_empty(), dev, others, "; ".join(parts), columns)
    refuse_one_class(task)
    return with_overlap(task)


def tasks_present(data: Path) -> list[str]:
    """Return the tasks that a folder holds, in GLUE's order."""
    if not data.is_dir():
        raise UserError(f"{printable(str(data))}: no such folder")
    return [name for name, glue in GLUE.items() if _find(glue, data)]


def _find(glue: GlueTask, data: Path) -> Path | None:
    """Return the folder of a task, whether it is spelled SST-2, sst2 or sst_2."""
    wanted = glue.folder.lower().replace("-", "")
    candidates = [data, *sorted(path for path in data.iterdir() if path.is_dir())]
    plain = (path for path in candidates if path.resolve().name.lower().replace("-", "").replace("_", "") == wanted)
    return next((path for path in plain if (path / "train.tsv").is_file()), None)


def _from_folder(glue: GlueTask, data: Path) -> tuple[Examples, Examples, Examples | None]:
    present = tasks_present(data)
    if (folder := _find(glue, data)) is None:
        there = f"it holds {', '.join(present)}" if present else "GLUE's layout is FOLDER/SST-2/train.tsv and so on"
        raise UserError(f"{printable(str(data))}: no {glue.folder}/train.tsv; {there}")
    train, dev = (_examples(glue, folder / f"{split}.tsv") for split in ("train", glue.dev))
    other = folder / f"{glue.other_dev}.tsv"
    return train, dev, _examples(glue, other) if glue.other_dev and other.is_file() else None


def _examples(glue: GlueTask, path: Path) -> Examples:
    source = open_source(path)
    rows = split_at_tabs(whole_lines(source))
    start, first = next(rows, (1, []))
    has_header = glue.name != "cola" or {glue.text, glue.label} <= set(first)
    names = first if has_header else list(COLA_COLUMNS)
    wanted = [glue.text, glue.label, *([glue.pair] if glue.pair else [])]
    if missing := [name for name in wanted if name not in names]:
        there = ", ".join(repr(printable(name)) for name in names[:20]) or "none"
        raise UserError(f"{source.label}: no column '{missing[0]}'; it has {there}")
    columns = [names.index(name) for name in wanted]
    examples = Examples(printable(str(path)), [], [] if glue.pair else None, [], checksum(source))
    skipped = 0
    for number, row in rows if has_header else chain([(start, first)], rows):
        if len(row) <= max(columns):
            skipped += 1
            continue
        examples.texts.append(row[columns[0]])
        examples.labels.append(_label(glue, row[columns[1]], place(source, number)))
        if examples.pairs is not None:
            examples.pairs.append(row[columns[2]])
    if not len(examples) or skipped > _MOST_SKIPPED * (len(examples) + skipped):
        raise UserError(
            f"{source.label}: {skipped:,} rows of {len(examples) + skipped:,} lack columns; it is no "
            f"{glue.folder} file of GLUE"
        )
    return replace(examples, empty=len(examples.empty_rows()), skipped=skipped)


def _label(glue: GlueTask, value: str, where: str) -> int | float:
    if not glue.labels:
        return number_of(value, where)
    if value not in glue.labels:
        raise UserError(f"{where}: the label '{printable(value)}' is none of {glue.name}'s {', '.join(glue.labels)}")
    return glue.labels.index(value)


def _from_hub(glue: GlueTask) -> tuple[Examples, Examples, Examples | None]:
    from datasets import load_dataset

    try:
        splits = load_dataset(_HUB, glue.name)
    except Exception as error:  # whatever the Hub's client raises
        reason = one_line(error, 150)
        raise UserError(
            f"GLUE cannot be had from the Hub ({reason}); give a folder in GLUE's layout: --data FOLDER"
        ) from None
    text, pair = _HUB_COLUMNS.get(glue.name, (glue.text, glue.pair))

    def examples(split: str) -> Examples:
        rows = splits[split]
        pairs = list(rows[pair]) if pair else None
        found = Examples(f"{_HUB}/{glue.name}/{split}", list(rows[text]), pairs, list(rows["label"]), rows._fingerprint)
        return replace(found, empty=len(found.empty_rows()))

    other = examples("validation_mismatched") if glue.other_dev else None
    return examples("train"), examples(f"validation{glue.dev.removeprefix('dev')}"), other
