"""Your own tasks: labelled files → tasks, each with rows that teach and rows that judge."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from latemask.evaluation.conll import is_conll, read_conll
from latemask.evaluation.labels import read_labels, unseen_label
from latemask.evaluation.splits import HELD_OUT, folds, with_overlap
from latemask.evaluation.tables import TableFile, checksum, read_table
from latemask.evaluation.tasks import Examples, Kind, Task, refuse_one_class
from latemask.ground.console import printable, say
from latemask.ground.errors import UserError
from latemask.text.sources import COMPRESSIONS

METRICS: dict[Kind, tuple[str, ...]] = {
    "classification": ("accuracy", "macro_f1"),
    "regression": ("pearson", "spearman"),
    "tagging": ("accuracy",),
    "multilabel": ("micro_f1", "macro_f1"),
}
SPAN_METRICS = ("span_f1", "accuracy")
_FILE_NAMES = {"train": ("train", "training"), "dev": ("dev", "validation", "valid", "val"), "test": ("test",)}
_SPLIT_WORD = re.compile(r"(?i)^(train|training)[-_. ]+|[-_. ]+(train|training)$")


@dataclass(frozen=True)
class OwnFiles:
    """Your own labelled files, instead of --task."""

    train: Path | None = None
    """Training file: CSV, TSV, JSONL or Parquet; CoNLL or CoNLL-U for tagging."""
    dev: Path | None = None
    """File to choose by and to report; by default one row in five of --train, with the same share of each label."""
    test: Path | None = None
    """File that is scored, too, and chooses nothing."""
    tasks: Path | None = None
    """Folder with one sub-folder for each task, which holds train.*, dev.* and test.*; instead of --train."""
    text: str | None = None
    """Column with the text, by default text; in CoNLL files its number, by default 1, in CoNLL-U also its name."""
    text_pair: str | None = None
    """Column with a second text."""
    label: str | None = None
    """Column with the label, by default label; in CoNLL files its number, by default the last, in CoNLL-U upos."""
    label_separator: str | None = None
    """What stands between several labels of one row in CSV and TSV; makes the task multilabel."""
    task_type: Kind | None = None
    """What is to be learnt; by default it is recognised from the labels, and tagging from the file's ending."""
    delimiter: str | None = None
    """What separates the fields of a CSV file; by default a comma, or what its header shows."""
    name: str | None = None
    """What tables call the task; by default the name of the training file, without train in it."""
    folds: int | None = None
    """Instead of --dev: split --train into so many parts; each is dev once, and the average is over all."""
    drop_overlap: bool = False
    """Leave training rows out whose text stands in dev or test, too, but for case, spacing and punctuation."""

    def given(self) -> list[str]:
        """Return the options that differ from their defaults, as a command line has them."""
        changed = (field.name for field in fields(self) if getattr(self, field.name) != field.default)
        return [f"--{name.replace('_', '-')}" for name in changed]

    def check(self) -> None:
        """Refuse what does not go together."""
        if self.tasks is not None:
            if double := [name for name in ("train", "dev", "test", "name") if getattr(self, name)]:
                raise UserError(f"--tasks has the files and names of its sub-folders: leave --{double[0]} away")
        elif self.train is None:
            raise UserError("missing --train: give --task NAME, or --train, --text and --label, or --tasks FOLDER")
        if self.folds is not None and self.dev is not None:
            raise UserError("--folds makes dev sets of --train: leave --dev away")
        if self.folds is not None and self.folds < 2:
            raise UserError(f"--folds {self.folds}: two at least")
        if self.name is not None and (not self.name.strip() or "/" in self.name):
            raise UserError(f"--name '{printable(self.name)}': a name without slashes")


NO_FILES = OwnFiles()


def load_own(own: OwnFiles) -> list[Task]:
    """Read one's own tasks: one, one for each fold, or those of a folder."""
    own.check()
    if own.tasks is not None:
        return [task for name, files in _sub_folders(Path(own.tasks)) for task in _load(own, files, name)]
    files = {split: Path(file) for split in _FILE_NAMES if (file := getattr(own, split)) is not None}
    return _load(own, files, own.name or name_of(files["train"]))


def name_of(train: Path) -> str:
    """Return what a task is called after its training file: trec-train.csv.gz is trec."""
    name = train.name
    for ending in COMPRESSIONS:
        name = name.removesuffix(ending)
    stem = Path(name).stem
    return _SPLIT_WORD.sub("", stem) or stem


def _sub_folders(folder: Path) -> Iterator[tuple[str, dict[str, Path]]]:
    """Yield the name and the files of every task in a folder."""
    if not folder.is_dir():
        raise UserError(f"--tasks {printable(str(folder))}: no such folder")
    found = 0
    for inside in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        files = {split: file for split, names in _FILE_NAMES.items() if (file := _file_of(inside, names))}
        if "train" not in files:
            say(f"{printable(str(inside))}: no train file in it; left out")
            continue
        found += 1
        yield inside.name, files
    if not found:
        raise UserError(f"--tasks {printable(str(folder))}: no sub-folder with a train file, such as TASK/train.csv")


def _file_of(folder: Path, names: tuple[str, ...]) -> Path | None:
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name.split(".")[0].lower() in names)
    if len(files) > 1:
        both = " and ".join(printable(path.name) for path in files[:2])
        raise UserError(f"{printable(str(folder))}: {both} are both there; keep one")
    return files[0] if files else None


def _load(own: OwnFiles, files: dict[str, Path], name: str) -> list[Task]:
    is_tagging = own.task_type == "tagging" or (own.task_type is None and is_conll(files["train"]))
    examples, known = _read_tagging(files, own) if is_tagging else _read_tables(files, own)
    train = examples.pop("train")
    for split, found in examples.items():
        if found.checksum and found.checksum == train.checksum:  # such a score says nothing, and looks very good
            say(f"warning: {split} is the same file as train: its score says what was memorised, not what was learnt")
    if "dev" not in files:
        parts = folds(train, known["kind"], own.folds or HELD_OUT)
        if own.folds:
            named = ((f"{name} fold {number} of {own.folds}", part) for number, part in enumerate(parts, 1))
            return [_task(own, fold, *part, examples, known) for fold, part in named]
        train, held_out = next(parts)
        say(f"no --dev: {len(held_out):,} rows of {files['train']} are held out as dev, {len(train):,} are trained on")
        return [_task(own, name, train, held_out, examples, known)]
    if own.folds:
        raise UserError(f"--folds makes dev sets of the training file, and there is {printable(str(files['dev']))}")
    return [_task(own, name, train, examples.pop("dev"), examples, known)]


def _task(
    own: OwnFiles, name: str, train: Examples, dev: Examples, others: dict[str, Examples], known: dict[str, Any]
) -> Task:
    task = Task(printable(name), train=train.without_empty(), dev=dev, others=others, **known)
    advice = "" if own.drop_overlap else ". --drop-overlap leaves them out of training"
    task = with_overlap(task, own.drop_overlap, advice)
    refuse_one_class(task)
    return task


def _read_tables(files: dict[str, Path], own: OwnFiles) -> tuple[dict[str, Examples], dict[str, Any]]:
    tables = {split: read_table(path, own.delimiter) for split, path in files.items()}
    columns = {"text": own.text or "text", "text_pair": own.text_pair, "label": own.label or "label"}
    kind, classes, labels = read_labels(tables, str(columns["label"]), own.task_type, own.label_separator)
    examples = {split: _examples(table, columns, labels[split]) for split, table in tables.items()}
    headline = () if kind == "regression" else METRICS[kind][:1]
    return examples, {
        "kind": kind,
        "labels": classes,
        "metrics": METRICS[kind],
        "columns": columns,
        "headline": headline,
    }


def _examples(table: TableFile, columns: dict[str, Any], labels: list[Any]) -> Examples:
    texts = table.texts(columns["text"], "--text")
    pairs = table.texts(columns["text_pair"], "--text-pair") if columns["text_pair"] else None
    examples = Examples(table.source.label, texts, pairs, labels, checksum(table.source))
    if empty := examples.empty_rows():
        say(f"{table.where(empty[0])}: no text; {len(empty):,} of {len(examples):,} rows have none")
    return replace(examples, empty=len(empty))


def _read_tagging(files: dict[str, Path], own: OwnFiles) -> tuple[dict[str, Examples], dict[str, Any]]:
    if not_for_tags := {"--text-pair", "--label-separator", "--delimiter"} & set(own.given()):
        raise UserError(f"{min(not_for_tags)}: a tagging task has a word and a tag in every line, as CoNLL files do")
    read = {split: read_conll(path, own.text, own.label) for split, path in files.items()}
    tags = tuple(sorted({tag for sentence in read["train"].tags for tag in sentence}))
    ids = {tag: number for number, tag in enumerate(tags)}
    examples = {}
    for split, file in read.items():
        for sentence, numbers in zip(file.tags, file.numbers, strict=True):
            for tag, number in zip(sentence, numbers, strict=True):
                if tag not in ids:
                    raise unseen_label(tag, f"{file.source}:{number}", read["train"].source, tags)
        labels = [[ids[tag] for tag in sentence] for sentence in file.tags]
        examples[split] = Examples(file.source, file.words, None, labels, file.checksum)
    is_spans = any(tag[:2] in ("B-", "I-", "S-", "U-") for tag in tags)
    metrics = SPAN_METRICS if is_spans else METRICS["tagging"]
    columns = {"text": own.text, "label": own.label}
    headline = metrics[:1] if is_spans else ()
    return examples, {"kind": "tagging", "labels": tags, "metrics": metrics, "columns": columns, "headline": headline}
