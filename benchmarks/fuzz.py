"""Random and mutated recipes, options, corpora and data folders: a result or a clear line, never a traceback or a hang.

python benchmarks/fuzz.py --cases 10000

Of a hundred cases, eighty are recipes (mutated files and options, planned; some of the accepted ones train a step),
fifteen are damaged data folders, and five are corpora (prepared from garbage in every format). One JSON object comes
last; a case that failed is printed with what repeats it.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gzip
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")
sys.path.insert(0, str(Path(__file__).parent.parent))  # also when it is run as a script

import yaml
from tests.faults.tormenting import RECIPE, make_data

from latemask.cli import main as latemask
from latemask.recipe import Recipe, dump_recipe, load_recipe, tree_of
from latemask.recipe.files import RECIPE_FOLDER

HANG_SECONDS = 60
NASTY: list[Any] = [
    *(0, -1, 1, 2, 3, 7, 64, 2**31, 2**63, 10**30, 0.0, 0.5, 1.0, 1e-300, 1e308, float("nan"), float("inf")),
    *("", "x", "null", "\x00", "\x1b[31m", "\u202eabc", "a" * 10_000, "../../etc/passwd", "!!python/object:os.system"),
    *(None, True, False, [], [1], {}, {"a": 1}, [[[]]]),
]
CHOICES = {
    "family": ["modernbert", "roberta", "roberta-prelayernorm", "bert"],
    "kind": ["inside", "self", "cross", "cross-only"],
    "positions": ["relative", "absolute"],
    "objective": ["late", "early"],
    "precision": ["auto", "fp32", "bf16", "fp16"],
}
LETTERS = "abc \u00c4\u00d6\u6f22\u5b57\u202e\u0000\x1b[2J\n\t\r\f\x0b\x85\u2028\ufeff\U0001f600\"'\\{}[],:;#&*!|>%@`"


class Hang(Exception):
    """A case that took too long."""


def garbage(chance: random.Random, most: int = 400) -> bytes:
    """Return random bytes, or random letters that make trouble."""
    if chance.random() < 0.2:
        return chance.randbytes(chance.randrange(most))
    return "".join(chance.choice(LETTERS) for _ in range(chance.randrange(most))).encode()


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Change some bytes of a file: flip, cut, double, insert."""
    found = bytearray(content)
    for _ in range(chance.randrange(1, 4)):
        place = chance.randrange(len(found) + 1)
        match chance.randrange(5):
            case 0 if found:
                found[place % len(found)] ^= 1 << chance.randrange(8)
            case 1:
                del found[place:]
            case 2:
                found[place:place] = found[max(place - 20, 0) : place]
            case 3:
                found[place:place] = garbage(chance, 20)
            case _:
                del found[place : place + chance.randrange(1, 10)]
    return bytes(found)


def nasty(chance: random.Random) -> Any:
    """Return one of the values that make trouble; a copy, for later cases change what they were given."""
    return copy.deepcopy(chance.choice(NASTY))


def near(key: str, value: Any, chance: random.Random) -> Any:
    """Return a value that could stand in its place, most of the time: what is refused at once shows little."""
    if chance.random() < 0.3:
        return nasty(chance)
    if key in CHOICES:
        return chance.choice(CHOICES[key])
    if isinstance(value, bool):
        return chance.random() < 0.5
    if isinstance(value, float):
        return chance.choice([value / 2, value * 2, 0.1, 0.3, 0.6, 0.9])
    if value is not None and not isinstance(value, int):
        return nasty(chance)
    return chance.choice([(value or 1) + 1, (value or 2) * 2, 1, 2, 3, 4, 8, 12, 33])


def changed_leaf(tree: Any, chance: random.Random) -> None:
    """Change one value somewhere in a tree of JSON."""
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    key = chance.choice(keys) if keys else None
    if key is None:
        return
    if isinstance(tree[key], (dict, list)) and tree[key] and chance.random() < 0.8:
        changed_leaf(tree[key], chance)
    else:
        value = tree[key]
        tree[key] = near(str(key), value if isinstance(value, (int, float)) else None, chance)


def changed_tree(recipe: Recipe, chance: random.Random) -> dict[str, Any]:
    """Put nasty values into a recipe, lose keys, invent others."""
    tree = tree_of(recipe)
    for _ in range(chance.randrange(1, 5)):
        section = chance.choice([tree, *(part for part in tree.values() if isinstance(part, dict))])
        key = chance.choice(list(section) or ["new"])
        match chance.randrange(4):
            case 0:
                section.pop(key, None)
            case 1 if chance.random() < 0.1:
                section[f"{key}x"] = nasty(chance)
            case _ if isinstance(section.get(key), dict):
                section[key] = chance.choice([{}, section[key], nasty(chance)])
            case _:
                section[key] = near(key, section.get(key), chance)
    return tree


class Cases:
    """Makes the cases, each from its number alone."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.seed = folder, seed
        self.data = make_data(folder)
        self.recipes = [path.read_bytes() for path in sorted(RECIPE_FOLDER.glob("*.yaml"))]
        self.recipes.append(dump_recipe(RECIPE).encode())

    def command(self, number: int) -> tuple[str, list[str]]:
        """Write what case `number` needs, and return its kind and command line."""
        chance = random.Random(f"{self.seed}-{number}")
        kind = ("recipe", "options", "data", "corpus")[sum(number % 100 >= bound for bound in (50, 80, 95))]
        return kind, getattr(self, f"_{kind}")(chance)

    def _recipe(self, chance: random.Random) -> list[str]:
        path = self.folder / "fuzzed.yaml"
        if chance.random() < 0.5:
            path.write_bytes(mutated(chance.choice(self.recipes), chance))
        elif chance.random() < 0.1:
            path.write_bytes(garbage(chance))
        else:
            tree = changed_tree(chance.choice([load_recipe("mini-base"), RECIPE]), chance)
            path.write_text(yaml.safe_dump(tree, allow_unicode=True), "utf-8", errors="surrogatepass")
        return ["plan", str(path), *chance.choice([[], ["--json"], ["--device", "a100"], ["--max-steps", "3"]])]

    def _options(self, chance: random.Random) -> list[str]:
        keys = [f"{part}.{key}" for part, tree in tree_of(RECIPE).items() if isinstance(tree, dict) for key in tree]
        keys += ["length", "seed", "objective", "max-steps", "hours", "kwh", "tokens", "flops", "device", "devices"]
        keys += ["peak-tflops", "mfu", "watts", "pue", "co2", "json", "nonsense"]
        words = ["plan", chance.choice(["mini-base", "small", "late-large", "nothing", ""])]
        for _ in range(chance.randrange(1, 4)):
            key = chance.choice(keys)
            value = near(key.split(".")[-1], chance.choice([1, 64, 0.5]), chance)
            words += [f"--{key.replace('_', '-')}", str(value)]
        return words

    def _data(self, chance: random.Random) -> list[str]:
        folder = self.folder / "fuzzed-data"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.data, folder)
        if chance.random() < 0.5:
            path = folder / "manifest.json"
            manifest = json.loads(path.read_text("utf-8"))
            changed_leaf(manifest, chance)
            path.write_text(json.dumps(manifest), "utf-8")
        else:
            path = chance.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
            path.write_bytes(mutated(path.read_bytes(), chance))
        return chance.choice([["inspect", str(folder)], ["inspect", str(folder), "--verify"], self._train(folder)])

    def _corpus(self, chance: random.Random) -> list[str]:
        folder = self.folder / "fuzzed-corpus"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        name = "a" + chance.choice(["", " b", "\n", "\u202e", "\u2018", "\u00fc", "-", "\x1b[31m"])
        ending = chance.choice(
            ["txt"] * 3 + ["jsonl"] * 3 + ["csv", "tsv", "txt.gz", "jsonl.gz", "parquet", "arrow", "bin"]
        )
        makers = {"txt": _text, "jsonl": _lines, "csv": _table, "tsv": _table}
        maker = makers.get(ending.split(".")[0]) or chance.choice([_text, _lines, _table])
        content = maker(chance)
        content = mutated(content, chance) if chance.random() < 0.3 else content
        if ending.endswith(".gz"):
            content = gzip.compress(content)
            content = mutated(content, chance) if chance.random() < 0.3 else content
        (folder / f"{name}.{ending}").write_bytes(content)
        out = self.folder / "fuzzed-prepared"
        shutil.rmtree(out, ignore_errors=True)
        return ["prepare", str(folder), "--out", str(out), "--vocab-size", "300", "--workers", "1"]

    def _train(self, data: Path) -> list[str]:
        recipe, out = self.folder / "one-step.yaml", self.folder / "fuzzed-run"
        recipe.write_text(dump_recipe(RECIPE))
        return ["pretrain", str(recipe), "--data", str(data), "--out", str(out), "--overwrite", "--max-steps", "1"]

    def training(self, number: int) -> list[str] | None:
        """Return how to train an accepted recipe for a step, where that is small enough to be tried often."""
        path = self.folder / "fuzzed.yaml"
        recipe = load_recipe(path)
        encoder, train = recipe.encoder, recipe.train
        tables = (encoder.vocab_size or 0) + (encoder.max_length or 0) + encoder.layers * (encoder.ffn_width or 0)
        rows = train.batch_size + train.eval_rows
        size = (tables + encoder.layers * (encoder.width + recipe.length * rows)) * encoder.width
        if number % 10 or size > 10**7 or encoder.init or train.workers:
            return None
        words = self._train(self.data)
        return [words[0], str(path), *words[2:]]


def _text(chance: random.Random) -> bytes:
    paragraphs = ("the cat sat on the mat " * chance.randrange(1, 200) for _ in range(chance.randrange(1, 30)))
    return b"\n\n".join(p.encode() + garbage(chance, 30) for p in paragraphs)


def _lines(chance: random.Random) -> bytes:
    values = [*NASTY, "some words to learn from " * 50, garbage(chance).decode("utf-8", "replace")]
    strings = [value for value in values if isinstance(value, str)]
    pick = values if chance.random() < 0.2 else strings
    rows = ({"text": f"{chance.choice(pick)}", "n": chance.choice(values)} for _ in range(chance.randrange(1, 200)))
    return b"\n".join(json.dumps(row).encode() for row in rows)


def _table(chance: random.Random) -> bytes:
    mark = chance.choice([",", ",", "\t"])
    rows = [mark.join(["text", "label"]), *(f'"a row of {chance.random()} words"{mark}{n}' for n in range(100))]
    return "\n".join(rows).encode() + garbage(chance, 50)


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise Hang after some time."""

    def ring(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(words: list[str]) -> tuple[str, str]:
    """Run a command line; return accepted, refused, traceback, hang or unclear, and what it said."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with limited(HANG_SECONDS), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = latemask(words)
    except Hang:
        return "hang", ""
    except BaseException:
        return "traceback", traceback.format_exc()
    if code == 0:
        return "accepted", ""
    said = err.getvalue()
    clear = any(line.startswith("latemask: ") for line in said.splitlines()) and "Traceback" not in said
    return ("refused" if clear and "\x1b" not in said else "unclear"), said


def fuzz(folder: Path, cases: int, seed: int, watch: Callable[[str], None]) -> dict[str, Any]:
    """Try so many cases and count how they end."""
    made, counts, kinds = Cases(folder, seed), Counter[str](), Counter[str]()
    started = time.perf_counter()
    for number in range(cases):
        kind, words = made.command(number)
        commands = [words]
        while commands:
            words = commands.pop()
            end, said = outcome(words)
            counts[end] += 1
            kinds[words[0]] += 1
            if end in ("traceback", "hang", "unclear"):
                watch(f"case {number} ({kind}, seed {seed}): {end}: {words}\n{said[-1500:]}")
            if kind == "recipe" and end == "accepted" and words[0] == "plan" and (training := made.training(number)):
                commands.append(training)
        if (number + 1) % 500 == 0:
            watch(f"{number + 1}/{cases} cases, {time.perf_counter() - started:.0f} s: {dict(counts)}")
    bad = {name: counts[name] for name in ("traceback", "hang", "unclear")}
    return {"cases": cases, "seed": seed, "commands": dict(kinds), **dict(counts), **bad}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = fuzz(
            Path(folder), arguments.cases, arguments.seed, lambda line: print(line, file=sys.__stderr__, flush=True)
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
