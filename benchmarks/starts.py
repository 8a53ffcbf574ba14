"""Which start gives the better encoder? Runs from every start, judged by loss, grammar and tags, layer by layer.

python benchmarks/starts.py --shared ../shared/data --work starts --only random-late corpus-late --seeds 2
python benchmarks/starts.py --summarise          (the table of docs/results.md, from benchmarks/starts/*.json)

Each run is `mini-base` (or `mini-base-early`) at a budget, in a process with one thread, and goes on where it stopped.
Starts that are not in the package are registered below, from outside, as anybody could. A start may be followed by keys
of the recipe's `train`: corpus,learning_rate=0.002-late
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.mini_runs import UNIT, grammar_of, in_processes, keep, markdown, prepare_everything, read_all

from latemask.recipe import STARTS, load_recipe
from latemask.run_folder import RunFolder

RECORDS = Path(__file__).parent / "starts"
AGREEMENT = ("subject_verb_agreement", "determiner_noun_agreement", "anaphor_agreement")
TAG_SENTENCES = 4000
PROBE_SENTENCES = 1500


# Starts beside those of the package


def with_parts(*parts: str) -> Callable[[Any, Any, int], None]:
    """Return word vectors and frequencies with some parts of the bag of neighbours."""

    def begin(model: Any, corpus: Any, seed: int) -> None:
        from latemask import starts

        starts.words(model, corpus, seed)
        if "near" in parts:
            starts.attend_near(model)
        if "pass" in parts:
            starts.pass_on(model, seed)
        if "mask" in parts:
            model.objective.start_as_a_word(model, starts.typical_word(model, corpus), corpus.data.vocabulary)
        if "head" in parts:
            starts.read_as_it_is(model)

    return begin


def counted_in(tokens: int, name: str) -> Callable[[Any, Any, int], None]:
    """Return a start that counts no more text than so many tokens."""

    def begin(model: Any, corpus: Any, seed: int) -> None:
        corpus.__dict__["neighbours"] = counted(corpus, tokens=tokens)
        STARTS[name](model, corpus, seed)

    return begin


def counted(corpus: Any, tokens: int | None = None, **options: Any) -> Any:
    """Count anew, with other options than the package."""
    from latemask.text.neighbours import MOST_TOKENS, count_neighbours
    from latemask.text.rows import part_of

    data = corpus.data.parts[0]
    shards = part_of(data.shards("train"), tokens or MOST_TOKENS)
    return count_neighbours(shards, data.token_bytes, data.vocabulary.size, **options)


def with_vectors(
    of: Callable[..., np.ndarray], window: int | None = None, length: float = 1.0, **options: Any
) -> Callable[..., None]:
    """Return the package's start with word vectors that are made otherwise: of(neighbours, known tokens, width)."""

    def begin(model: Any, corpus: Any, seed: int) -> None:
        from latemask.text.word_vectors import known_tokens

        found = counted(corpus, window=window) if window else corpus.neighbours
        known = known_tokens(found, corpus.data.vocabulary.special)
        vectors = np.zeros((len(found.frequencies), model.words.shape[1]), np.float32)
        vectors[known] = length * of(found, known, vectors.shape[1], **options)
        corpus.vectors = lambda width: vectors
        STARTS["corpus"](model, corpus, seed)

    return begin


def both_sides(found: Any, known: np.ndarray, width: int, shift: float = 0.0, power: float = 0.5) -> np.ndarray:
    """A neighbour is one before or behind, as in the package; shifted, only what is far above chance counts."""
    from latemask.text.word_vectors import factorised, positive_information

    information = positive_information(found.pairs[known][:, known])
    information.data = (information.data - shift).clip(0)
    information.eliminate_zeros()
    return factorised(information, width, power)


def by_side(found: Any, known: np.ndarray, width: int) -> np.ndarray:
    """Neighbours before and behind are told apart: vectors say more of how a word is used, less of what it is about."""
    from scipy import sparse

    from latemask.text.word_vectors import factorised, positive_information

    behind = found.following[known][:, known]
    sides = [positive_information(side) for side in (behind, behind.T.tocsr())]
    return factorised(sparse.hstack(sides, format="csr"), width)


def only_frequencies(model: Any, corpus: Any, seed: int) -> None:
    """The head's bias alone."""
    from latemask import starts

    starts.set_frequencies(model, corpus)


def register() -> None:
    """Add what is compared with the package's own starts."""
    for part in ("near", "pass", "mask", "head"):
        STARTS[f"words+{part}"] = with_parts(part)
        others = {"near", "pass", "mask", "head"} - {part}
        STARTS[f"corpus-{part}"] = with_parts(*others)
    STARTS["frequencies"] = only_frequencies
    for name in ("words", "corpus"):
        STARTS[f"{name}@2.7M"] = counted_in(2_700_000, name)
    STARTS["corpus@20M"] = counted_in(20_000_000, "corpus")
    STARTS["sides"] = with_vectors(by_side)
    STARTS["long"] = with_vectors(both_sides, length=1.5)
    STARTS["sides-long"] = with_vectors(by_side, length=1.5)
    STARTS["sides2"] = with_vectors(by_side, window=2)
    STARTS["window2"] = with_vectors(both_sides, window=2)
    STARTS["window10"] = with_vectors(both_sides, window=10)
    STARTS["shifted"] = with_vectors(both_sides, shift=np.log(5))
    STARTS["power0"] = with_vectors(both_sides, power=0.0)
    STARTS["power1"] = with_vectors(both_sides, power=1.0)


# One run


def judged(name: str, start: str, objective: str, seed: int, flops: float, work: Path, shared: Path) -> dict[str, Any]:
    """Pre-train, then ask the model for everything; what is there already is not done again."""
    from latemask import pretrain
    from latemask.budget.flops import with_budget

    recipe_name = "mini-base" if objective == "late" else "mini-base-early"
    first, *settings = start.split(",")
    train = {key: json.loads(value) for key, value in (setting.split("=") for setting in settings)}
    changes = {"seed": seed, "encoder": {"start": first}, "train": train}
    recipe = with_budget(load_recipe(recipe_name, changes), None, None, flops)
    run = RunFolder(work / "runs" / name)
    pretrain(recipe, data=work / "data", out=run.path, resume=run.recipe_file.is_file())
    rows, record = run.metrics(), run.record
    scored = grammar_of(run, work, name)
    terms = {term: round(found["mean"], 2) for term, found in scored["terms"].items()}
    return {
        "start": start,
        "objective": objective,
        "seed": seed,
        "flops": record["flops"],
        "steps": record["steps"],
        "seconds": rows[-1]["seconds"],
        "start_seconds": record.get("start_seconds"),
        "precision": record["precision"],
        "validation": [[row["step"], round(row["eval_loss"], 4)] for row in rows if "eval_loss" in row],
        "blimp": round(scored["mean"], 2),
        "blimp_error": round(scored["error"], 2),
        "terms": terms,
        "tags": tags(run, work, shared, name),
        "tags_by_layer": tags_by_layer(run, shared),
    }


def tags(run: RunFolder, work: Path, shared: Path, name: str) -> float:
    """Return the accuracy on EWT's dev set after fine-tuning, in per cent."""
    from latemask import Protocol, finetune

    folder = shared / "tagging"
    results = finetune(
        str(run.path),
        train=folder / "ewt-train.conllu.gz",
        dev=folder / "ewt-dev.conllu.gz",
        task_type="tagging",
        text="form",
        label="upos",
        name="ewt",
        seeds=1,
        lrs=[1e-3],
        protocol=Protocol(epochs=2, max_train=TAG_SENTENCES),
        no_control=True,
        out=work / "tags" / name,
    )
    return round(100 * results.summaries()[0].median, 2)


def tags_by_layer(run: RunFolder, shared: Path) -> list[float]:
    """Return how often a linear map finds a word's tag in the frozen state of its first piece: layers, per cent."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(run.encoder)
    model = AutoModel.from_pretrained(run.encoder).eval()
    sides = []
    for split in ("train", "dev"):
        states: list[Any] = []
        labels: list[str] = []
        for words, found in sentences(shared / "tagging" / f"ewt-{split}.conllu.gz")[:PROBE_SENTENCES]:
            given = tokenizer(words, is_split_into_words=True, return_tensors="pt", truncation=True, max_length=128)
            places = given.word_ids(0)
            firsts = [place for place, word in enumerate(places) if word is not None and word != places[place - 1]]
            with torch.inference_mode():
                layers = model(**given, output_hidden_states=True).hidden_states
            states.append(torch.stack([layer[0, firsts] for layer in layers]).numpy())
            labels += [found[places[place]] for place in firsts]
        sides.append((np.concatenate(states, axis=1), np.array(labels)))
    (train, known), (dev, asked) = sides
    classes, targets = np.unique(known, return_inverse=True)
    return [round(100 * ridge(train[layer], targets, dev[layer], classes, asked), 2) for layer in range(len(train))]


def ridge(train: np.ndarray, targets: np.ndarray, dev: np.ndarray, classes: np.ndarray, asked: np.ndarray) -> float:
    """Return the accuracy of least squares with a little regularisation."""
    mean, scale = train.mean(0), train.std(0) + 1e-6
    left, right = ((np.c_[(side - mean) / scale, np.ones(len(side))]).astype(np.float64) for side in (train, dev))
    weights = np.linalg.solve(left.T @ left + 10 * np.eye(left.shape[1]), left.T @ np.eye(len(classes))[targets])
    return float((classes[(right @ weights).argmax(1)] == asked).mean())


def sentences(file: Path) -> list[tuple[list[str], list[str]]]:
    """Return the words and tags of a CoNLL-U file."""
    found = []
    for block in gzip.decompress(file.read_bytes()).decode().strip().split("\n\n"):
        rows = [line.split("\t") for line in block.split("\n") if not line.startswith("#")]
        rows = [row for row in rows if row[0].isdigit()]
        found.append(([row[1] for row in rows], [row[3] for row in rows]))
    return found


# All runs


def one_run(name: str, arguments: Any) -> None:
    """In a process of its own: one run and its record."""
    start, objective, seed = name.removeprefix(prefix(arguments.flops)).rsplit("-", 2)
    record = judged(name, start, objective, int(seed), arguments.flops, arguments.work, arguments.shared)
    keep(RECORDS, name, record)


def prefix(flops: float) -> str:
    """Return how names of runs begin whose budget is not the usual one."""
    return "" if flops == UNIT else f"{flops / UNIT:g}x-"


def table() -> str:
    """Return the records as Markdown, a line for each arm: means over its seeds, and every seed's loss."""
    arms: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for found in read_all(RECORDS):
        arms.setdefault((f"{found['flops']:.2g}", found["objective"], found["start"]), []).append(found)
    terms = ["subject-verb", "determiner-noun", "anaphor"]
    header = ["start", "objective", "FLOPs", "loss, by seed", "BLiMP", *terms, "tags", "tags by layer: 0, 4, 8, last"]
    rows = []
    for (flops, objective, start), records in sorted(arms.items()):
        losses = ", ".join(f"{found['validation'][-1][1]:.3f}" for found in records)
        columns = [
            [found["blimp"] for found in records],
            *([found["terms"][term] for found in records] for term in AGREEMENT),
            [found["tags"] for found in records],
        ]
        layers = np.mean([found["tags_by_layer"] for found in records], axis=0)[[0, 4, 8, -1]]
        cells = [f"`{start}`", objective, flops, losses, *(f"{np.mean(column):.1f}" for column in columns)]
        rows.append([*cells, ", ".join(f"{layer:.1f}" for layer in layers)])
    return markdown(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=Path("../shared/data"))
    parser.add_argument("--work", type=Path, default=Path("starts"), help="where runs and scores are kept")
    parser.add_argument(
        "--only", nargs="+", default=["random-late", "words-late", "corpus-late"], help="START[,KEY=VALUE]-OBJECTIVE"
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--flops", type=float, default=UNIT)
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time, one thread each")
    parser.add_argument("--summarise", action="store_true", help="only print the table")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    register()
    if arguments.one:
        one_run(arguments.one, arguments)
        return
    if not arguments.summarise:
        prepare_everything(arguments.shared, arguments.work)
        names = [f"{prefix(arguments.flops)}{arm}-{seed}" for seed in range(arguments.seeds) for arm in arguments.only]
        words = ["--shared", arguments.shared, "--flops", arguments.flops]
        in_processes(__file__, names, RECORDS, arguments.work, words, arguments.jobs)
    print(table())


if __name__ == "__main__":
    main()
