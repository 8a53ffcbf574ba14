"""What was trained before is trained today: losses and weights of 30 steps, by the numbers of commit 8d42c26.

tests/same_bits.json holds them, for `demo` and for every family and kind. On a processor like the one they come from,
everything must be the same to the bit; on others, to what rounding leaves. Validation losses were means in fp32 then
and are in fp64 now, so that they do not depend on the number of processes: the same to 2e-6. Where something is meant
to change a number, say so in the commit, and write the file anew with `python -m tests.test_same_bits`.
"""

import hashlib
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from latemask import load_recipe, prepare, pretrain
from latemask.ground.errors import TimeIsUp
from latemask.run_folder import RunFolder

EXPECTED = Path(__file__).with_name("same_bits.json")
FAMILIES = ("modernbert", "roberta", "roberta-prelayernorm", "bert")
TRAIN = {"log_every": 1, "eval_every": 10, "save_every": 100, "precision": "fp32", "eval_rows": 20}
TINY = {
    "length": 32,
    "encoder": {"layers": 3, "width": 32, "heads": 2, "start": "random"},
    "mask": {"rate": 0.4},
    "train": {**TRAIN, "batch_size": 8, "learning_rate": 3e-3},
    "budget": {"steps": 30},
}
MORE = {
    **TINY,
    "encoder": {**TINY["encoder"], "dropout": 0.1},
    "mask": {"rate": 0.4, "rate_end": 0.2, "random": 0.1, "keep": 0.1, "drop": 0.1},
    "train": {**TINY["train"], "micro_batch_size": 4, "log_every": 4},
}
RECIPES = {
    "demo": {"encoder": {"start": "random"}, "train": TRAIN, "budget": {"steps": 30}},
    **{
        f"{family} {kind}": {**TINY, "encoder": {**TINY["encoder"], "family": family}, "join": {"kind": kind}}
        for family in FAMILIES
        for kind in ("inside", "self", "cross", "cross-only")
    },
    **{
        f"{family} early": {**TINY, "encoder": {**TINY["encoder"], "family": family}, "objective": "early"}
        for family in FAMILIES
    },
    "modernbert everything": MORE,
    "roberta everything": {
        **MORE,
        "encoder": {**MORE["encoder"], "family": "roberta"},
        "join": {"kind": "cross", "positions": "absolute"},
    },
    "bert two-way": {**TINY, "encoder": {**TINY["encoder"], "family": "bert"}, "join": {"two_way": True}},
}
RESUMED = ("demo", "modernbert inside", "roberta self", "bert early", "modernbert everything")


def processor() -> str:
    """Return what decides the bits of a sum on this machine: the processor, to its last flag."""
    lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines() if Path("/proc/cpuinfo").exists() else []
    told = [line for line in lines if line.split("\t")[0] in ("model name", "cpu family", "model", "stepping", "flags")]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


def make_data(folder: Path):
    """Prepare a text that is the same everywhere."""
    chance = random.Random(0)
    words = ["".join(chance.choice("abcdefghijklmnop") for _ in range(chance.randint(2, 7))) for _ in range(300)]
    documents = [" ".join(chance.choice(words) for _ in range(chance.randint(20, 120))) for _ in range(300)]
    (folder / "text.txt").write_text("\n\n".join(documents))
    return prepare([folder / "text.txt"], out=folder / "data", vocab_size=500, validation=0.1)


def numbers(run: RunFolder) -> dict:
    """Return what is compared of a run: losses, and the weights by a digest and by their size."""
    weights = load_file(run.model / "model.safetensors")
    digests = [f"{name} {hashlib.sha256(weights[name].tobytes()).hexdigest()[:16]}" for name in sorted(weights)]
    rows = run.metrics()
    return {
        "losses": [row["loss"] for row in rows if "loss" in row],
        "norms": [row["grad_norm"] for row in rows if "loss" in row],
        "validations": [row["eval_loss"] for row in rows if "eval_loss" in row],
        "weights": hashlib.sha256("\n".join(digests).encode()).hexdigest()[:16],
        "size": float(sum(np.linalg.norm(weights[name].astype(np.float64)) for name in sorted(weights))),
    }


def same(found: dict, expected: dict, is_same_processor: bool) -> bool:
    validated = found["validations"] == pytest.approx(expected["validations"], abs=2e-6 if is_same_processor else 1e-3)
    if is_same_processor:
        return validated and all(found[key] == expected[key] for key in ("losses", "norms", "weights", "size"))
    return validated and all(
        found[key] == pytest.approx(expected[key], rel=1e-3) for key in ("losses", "norms", "size")
    )


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("same-bits"))


@pytest.fixture(scope="module")
def expected():
    return json.loads(EXPECTED.read_text())


@pytest.mark.parametrize("name", RECIPES)
def test_thirty_steps_are_what_they_were(text, tmp_path, expected, name):
    run = pretrain(load_recipe("demo", RECIPES[name]), data=text.folder, out=tmp_path / "run")
    assert same(numbers(run), expected["runs"][name], processor() == expected["processor"])


@pytest.mark.parametrize("name", RESUMED)
def test_so_are_they_where_the_run_was_stopped_and_resumed(text, tmp_path, expected, name):
    recipe = load_recipe("demo", RECIPES[name])
    with pytest.raises(TimeIsUp):
        pretrain(recipe, data=text.folder, out=tmp_path / "run", stop_after="0s")
    run = pretrain(recipe, data=text.folder, out=tmp_path / "run", resume=True)
    assert same(numbers(run), expected["runs"][name], processor() == expected["processor"])


def write(folder: Path) -> None:
    """Write the file anew, with one thread as the tests have it."""
    os.environ["OMP_NUM_THREADS"] = "1"
    data = make_data(folder)
    runs = {
        name: numbers(pretrain(load_recipe("demo", tree), data=data.folder, out=folder / name))
        for name, tree in RECIPES.items()
    }
    EXPECTED.write_text(json.dumps({"processor": processor(), "runs": runs}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as workshop:
        write(Path(workshop))
