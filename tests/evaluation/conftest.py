"""A tiny encoder and tiny tasks, made on the spot."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from latemask.evaluation.encoders import Encoder, open_encoders
from latemask.evaluation.probe_text import ProbeText, builtin_text
from latemask.evaluation.tasks import GLUE, Examples, Task
from latemask.model import build_model, complete_recipe
from latemask.text import PreparedData
from latemask.text.builtin import builtin_files
from latemask.text.tokenizer import copy_tokenizer
from tests.conftest import tiny_recipe

SHARED = Path(os.environ.get("LATEMASK_SHARED", Path(__file__).parents[3] / "shared")) / "data"
WORDS = {"0": ["sad", "poor", "dull", "bad"], "1": ["good", "great", "fine", "happy"]}
PLAIN = ["the", '"film"', "was", "made", "of", "many", "long", "days", "and", "some", "words"]

# Every GLUE file's own header and one row of it; {text}, {pair} and {label} are filled in.
LAYOUTS = {
    "cola": (None, "gj04\t{label}\t\t{text}"),
    "sst2": ("sentence\tlabel", "{text} \t{label}"),
    "mrpc": ("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "{label}\t17\t18\t{text}\t{pair}"),
    "stsb": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "0\tmain\tMSRvid\t2012\t1\tnone\tnone\t{text}\t{pair}\t{label}",
    ),
    "qqp": ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "1\t2\t3\t{text}\t{pair}\t{label}"),
    "mnli": (
        "index\tpromptID\tpairID\tgenre\tsentence1\tsentence2\tlabel1\tgold_label",
        "0\t1\t2\tfiction\t{text}\t{pair}\tneutral\t{label}",
    ),
    "qnli": ("index\tquestion\tsentence\tlabel", "0\t{text}\t{pair}\t{label}"),
    "rte": ("index\tsentence1\tsentence2\tlabel", "0\t{text}\t{pair}\t{label}"),
    "wnli": ("index\tsentence1\tsentence2\tlabel", "0\t{text}\t{pair}\t{label}"),
}


def sentence(number: int, kind: str) -> str:
    """A sentence that says in one word which of two kinds it is; a stray quote is a character."""
    start = number % 5
    return " ".join([*PLAIN[start : start + 4 + number % 3], WORDS[kind][number % 4], '"', "."])


def write_glue_file(path: Path, name: str, rows: int) -> None:
    """Write one file of a task in GLUE's layout."""
    header, row = LAYOUTS[name]
    lines = [header] if header else []
    for number in range(rows):
        kinds = GLUE[name].labels or tuple("01234")
        kind = number % len(kinds)
        label = kinds[kind] if GLUE[name].labels else f"{kind}.250"
        text, pair = sentence(number, str(kind % 2)), sentence(number + 1, str(kind % 2))
        lines.append(row.format(label=label, text=text, pair=pair))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines), "utf-8")  # no newline at the end, as in CoLA's dev.tsv


def write_glue(folder: Path, *names: str, train: int = 24, dev: int = 10) -> Path:
    """Write tasks in GLUE's layout."""
    for name in names or GLUE:
        glue = GLUE[name]
        write_glue_file(folder / glue.folder / "train.tsv", name, train)
        for split in filter(None, (glue.dev, glue.other_dev)):
            write_glue_file(folder / glue.folder / f"{split}.tsv", name, dev)
    return folder


@pytest.fixture(scope="session")
def glue_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of GLUE, in miniature."""
    return write_glue(tmp_path_factory.mktemp("glue"))


@pytest.fixture(scope="session")
def encoder_folder(data: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported encoder with weights that nobody trained, the same ones every time."""
    folder = tmp_path_factory.mktemp("encoders") / "tiny"
    torch.manual_seed(20)
    model = build_model(complete_recipe(tiny_recipe(), data.vocabulary), data.vocabulary)
    model.encoder.save_pretrained(str(folder))
    copy_tokenizer(data.tokenizer_folder, folder, 32)
    return folder


@pytest.fixture(scope="session")
def encoder(encoder_folder: Path) -> Encoder:
    return open_encoders([str(encoder_folder)])[0]


@pytest.fixture(scope="session")
def builtin() -> ProbeText:
    """The prose of some of the builtin text's files, of all its libraries."""
    some = builtin_files()[::4]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("latemask.text.builtin.builtin_files", lambda: some)
        return builtin_text()


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., Path]:
    """Write a file and return its path."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, "utf-8")
        return path

    return write


def make_task(kind: str = "classification", rows: int = 24, **changes) -> Task:
    """A task that a tiny encoder can learn: which of two words is in the text."""
    texts = [sentence(number, str(number % 2)) for number in range(rows)]
    labels: list = [number % 2 for number in range(rows)]
    names, metrics = ("no", "yes"), ("accuracy",)
    if kind == "regression":
        labels, names, metrics = [label + 0.5 for label in labels], (), ("pearson", "spearman")
    if kind == "multilabel":
        labels = [[label, int("made" in text)] for label, text in zip(labels, texts, strict=True)]
        names, metrics = ("good", "made"), ("micro_f1", "macro_f1")
    if kind == "tagging":
        texts = [text.split() for text in texts]
        labels = [[int(word in WORDS["0"] + WORDS["1"]) for word in words] for words in texts]
        names, metrics = ("O", "B-MOOD"), ("span_f1", "accuracy")
    examples = Examples("made up", texts, None, labels, "0" * 64)
    return Task(**{"name": kind, "kind": kind, "labels": names, "metrics": metrics, "train": examples,
                   "dev": examples.taken(range(12)), **changes})  # fmt: skip
