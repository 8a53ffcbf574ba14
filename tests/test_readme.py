"""Every command and every Python block of README and docs runs. Only budgets and sizes are cut, to take seconds."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from latemask.cli import VERBS, main
from latemask.evaluation.protocol import Protocol
from latemask.run_folder import RunFolder
from latemask.text.builtin import builtin_files
from tests.evaluation.conftest import write_glue

ROOT = Path(__file__).parent.parent
SMALL = "length: 32\nencoder: {layers: 2, width: 32, heads: 2}\ntrain: {batch_size: 4}\n"
TINY = "--encoder.layers 2 --encoder.width 32 --encoder.heads 2 --train.batch-size 4"


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text("utf-8"), re.MULTILINE | re.DOTALL)


def commands(document: str) -> list[str]:
    lines = [line.split("  #")[0].strip() for block in blocks(document, "sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("latemask ")]


def cut(command: str) -> str:
    """Make a pre-training take seconds; a resumed one keeps the recipe it has."""
    command = command.replace("--max-steps 1000", "")
    if command.startswith("latemask pretrain") and "--resume" not in command:
        command += f" --max-steps 2 {TINY}"
    if command.startswith(("latemask finetune", "latemask glue")):
        command += " --epochs 1 --seeds 1 --no-control"
    if command.startswith("latemask grammar"):
        command += " --no-control"
    if command.startswith("latemask probe"):
        command += " --examples 200"
    return command


def cut_sweep(text: str) -> str:
    """Make a sweep take seconds."""
    return (
        text.replace("recipe: small", "recipe: tiny.yaml")
        .replace("e+13", "e+8")
        .replace("[0, 1]", "[0]")
        .replace("0.3, 0.4, ", "")
    )


@pytest.fixture
def workshop(tmp_path, corpus, monkeypatch):
    """A folder with a corpus, labelled files and a task of GLUE in it, as a reader of the README has one."""
    (tmp_path / "corpus").mkdir()
    shutil.copy(corpus, tmp_path / "corpus")
    for name in ("train", "dev", "new"):
        (tmp_path / f"{name}.csv").write_text("review,mood\n" + "a good film,glad\na bad film,sad\n" * 4)
    write_glue(tmp_path / "glue", "rte", train=8, dev=4)
    (tmp_path / "blimp" / "data").mkdir(parents=True)
    pair = {"sentence_good": "It is good.", "sentence_bad": "It are good.", "linguistics_term": "t", "UID": "number"}
    (tmp_path / "blimp" / "data" / "number.jsonl").write_text(json.dumps(pair))
    (tmp_path / "tiny.yaml").write_text(SMALL)
    (tmp_path / "rates.yaml").write_text(cut_sweep(blocks("docs/comparing.md", "yaml")[0]))
    some = builtin_files()[::15]
    monkeypatch.setattr("latemask.evaluation.probe_tasks._FEWEST_OF_AN_ORIGIN", 20)
    monkeypatch.setattr("latemask.text.builtin.builtin_files", lambda: some)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commands_of_the_readme_run_in_their_order(workshop):
    found = commands("README.md")
    assert {line.split()[1] for line in found} == set(VERBS) - {"demo"}
    for command in found:
        assert main(shlex.split(cut(command))[1:]) == 0, command
    exec(blocks("README.md", "python")[0], {})
    assert (workshop / "my-encoder" / "model.safetensors").is_file()


def test_the_python_of_the_readme_runs(workshop):
    small = workshop / "small"
    small.write_text(SMALL)
    code = blocks("README.md", "python")[1].replace("max_steps=1000", "max_steps=2")
    code = code.replace('out="mood"', 'out="mood", seeds=1, no_control=True, protocol=Protocol(epochs=1)')
    exec(code, {"Protocol": Protocol})
    assert (workshop / "my-encoder" / "model.safetensors").is_file()


def test_the_branches_of_the_docs_run(workshop):
    assert main(["prepare", "corpus", "--out", "data", "--vocab-size", "500"]) == 0
    for command in commands("docs/training.md"):
        shorter = re.sub(r"\b(\d+)00\b", r"\1", command) + (f" {TINY}" if " small " in command else "")
        assert main(shlex.split(shorter)[1:]) == 0, shorter
    ends = {path.name: RunFolder(path).record["steps"] for path in (workshop / "runs").iterdir()}
    assert ends == {"stem": 40, "to-10": 10, "to-20": 20}


def test_the_ten_lines_of_the_docs_run(workshop):
    assert main(["prepare", "corpus", "--out", "data", "--vocab-size", "500"]) == 0
    (code,) = blocks("docs/own-trainer.md", "python")
    exec(code, {})
    assert (workshop / "encoder" / "model.safetensors").is_file()
    assert (workshop / "encoder" / "tokenizer.json").is_file()


def test_the_recipes_named_in_the_readme_are_there():
    for name in re.findall(r"recipes/([\w-]+)", (ROOT / "README.md").read_text("utf-8")):
        assert (ROOT / "recipes" / f"{name}.yaml").is_file()
    for name in re.findall(r"^\| `([\w-]+)`", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE):
        assert (ROOT / "recipes" / f"{name}.yaml").is_file()


def test_links_between_documents_lead_somewhere():
    for document in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", document.read_text("utf-8")):
            assert (document.parent / target).exists(), f"{document.name} -> {target}"


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_make_knows_its_two_commands():
    """Not run here, they would set up an environment in an environment; CI is `make test`, and demo has its tests."""
    for command, ends in (("demo", "latemask demo"), ("test", "pytest")):
        make = ["make", "--no-print-directory", "-n", command]
        done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True)
        assert f"/{ends}" in done.stdout.strip().splitlines()[-1]
