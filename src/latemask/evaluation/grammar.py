"""`latemask grammar`: minimal pairs, zero-shot. Which of two sentences does a model find more likely?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from latemask.evaluation.contamination import found_in, open_corpora
from latemask.evaluation.grammar_results import (
    FLOORS,
    RECORD,
    SCORES,
    TABLE,
    UNIGRAM,
    UNTRAINED,
    Accuracies,
    GrammarStudy,
    Score,
)
from latemask.evaluation.minimal_pairs import read_pairs
from latemask.ground.console import json_line, printable, say
from latemask.ground.errors import UserError
from latemask.ground.files import exclusive_lock, write_text_atomically
from latemask.ground.tables import escaped, markdown_table, show_table

if TYPE_CHECKING:
    from latemask.evaluation.language_models import LanguageModel
    from latemask.evaluation.pseudo_likelihood import Sentences
    from latemask.text.prepared import PreparedData

_SAME = 1e-5  # nats a token
_PAIRS_OF_A_PARADIGM = 25  # for the never-trained floor: it is near chance, and costs as much as the model


def grammar(
    models: Sequence[str],
    *,
    pairs: Path,
    score: Score = "token",
    out: Path | None = None,
    no_control: bool = False,
    corpus: Sequence[Path] | None = None,
    json: bool = False,
) -> list[dict[str, Any]]:
    """Ask models which of two sentences is right, with no training: minimal pairs such as BLiMP.

    Args:
        models: Run folders (also unfinished), checkpoints, or stock ...ForMaskedLM folders or Hub ids.
        pairs: Table with good and bad (and term, paradigm), or a folder of such: BLiMP's as it is published.
        score: How a token is hidden: alone, or by word, with the rest of its word.
        out: Folder to write; by default grammar-results/ and the name of the pairs. The same command goes on there.
        no_control: Do not score the same architecture, never trained, beside each model.
        corpus: Data folders to count words in and to look the pairs up in; by default those of the model's run.
        json: Print one JSON object instead of a table.
    """
    asked = read_pairs(Path(pairs))
    names = [models] if isinstance(models, str) else list(models)
    out = Path(out) if out else Path("grammar-results") / asked.name
    _refuse_folder(out)
    from latemask.evaluation.language_models import open_language_model  # not for --help: it loads torch

    lock = exclusive_lock(out / ".lock", f"{printable(str(out))} is in use by another process")
    try:
        study = GrammarStudy(out, asked, score)
        found = []
        for model in [open_language_model(name) for name in names]:  # all first: a wrong name costs no hour
            found.append(_judged(model, study, not no_control, corpus))
            study.keep(found[-1])
            _write_table(study)
    finally:
        lock.release()
    if not json:
        show_table(_rows(found))
    for sentence in [*map(verdict, found), f"results: {out / RECORD}"]:
        say(sentence)
    if json:
        print(json_line(found[0] if len(found) == 1 else {"models": found, "pairs": len(asked)}))
    return found


def _refuse_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UserError(f"{printable(str(out))} is a file, not a folder")
    ours = (out / RECORD).exists() or (out / SCORES).is_dir()
    if out.is_dir() and not ours and any(not path.name.startswith(".") for path in out.iterdir()):
        raise UserError(f"{printable(str(out))} is not empty and holds no grammar results; choose another --out")


def _judged(
    model: LanguageModel, study: GrammarStudy, with_untrained: bool, corpus: Sequence[Path] | None
) -> dict[str, Any]:
    """Return the record of one model: accuracies, and floors beside them."""
    from latemask.evaluation.pseudo_likelihood import tokenized

    sentences = tokenized(study.sentences, model.tokenizer)
    if too_long := [number for number, ids in enumerate(sentences.ids) if len(ids) > model.longest]:
        say(
            f"{printable(model.name)}: {len(too_long):,} sentences have more than the {model.longest} tokens it takes; "
            "their pairs are left out"
        )
    corpora = open_corpora(corpus, [model.name])
    overlap = found_in(corpora, list(zip(study.pairs.good, study.pairs.bad, strict=True))) if corpora else None
    if overlap:
        say(f"{printable(model.name)}: {overlap.words('pairs')}")
    by_model = study.scores(model, sentences)
    differences = _differences(study, sentences, by_model)
    accuracies = Accuracies.of(study.pairs, differences)
    if not accuracies.count:
        raise UserError(f"'{printable(model.name)}' takes {model.longest} tokens: every pair is longer")
    floors: dict[str, Accuracies | None] = dict.fromkeys(FLOORS)
    if (counts := _counts(model, corpora)) is not None:
        floors[UNIGRAM] = Accuracies.of(study.pairs, study.differences(_by_frequency(sentences, counts, by_model)))
    if with_untrained:
        sample = study.sample(_PAIRS_OF_A_PARADIGM, differences)
        by_control = study.scores(model.untrained(), sentences, sample)
        floors[UNTRAINED] = Accuracies.of(study.pairs, _differences(study, sentences, by_control))
    return {
        "model": model.label,
        "identity": model.checksum,
        "run": str(model.run.resolve()) if model.run else None,
        "step": model.step,
        "score": study.score,
        "pairs": accuracies.count,
        "left_out": len(study.pairs) - accuracies.count,
        "in_corpus": overlap.found if overlap and overlap.is_known else None,
        "in_corpus_by_chance": overlap.by_chance if overlap and overlap.is_known else None,
        "mean": accuracies.mean,
        "error": accuracies.error,
        **{name: floor.mean if floor else None for name, floor in floors.items()},
        "errors_of_floors": {name: floor.error for name, floor in floors.items() if floor},
        "pairs_of_floors": {name: floor.count for name, floor in floors.items() if floor},
        "terms": {
            term: {
                **accuracies.term(term),
                **{name: floor.term(term)["mean"] if floor else None for name, floor in floors.items()},
            }
            for term in accuracies.terms
        },
        "paradigms": {f"{term}/{name}": value for (term, name), (value, _) in accuracies.by_paradigm.items()},
    }


def _differences(study: GrammarStudy, sentences: Sentences, scores: list[float | None]) -> list[float | None]:
    """Return by how much the good sentence of each pair is more likely.

    To a model that finds every token as likely as any other, shorter sentences are: that is no grammar, but a tie.
    """
    found = study.differences(scores)
    counts = [int((words >= 0).sum()) for words in sentences.words]
    each = [score / count for score, count in zip(scores, counts, strict=True) if score is not None and count]
    if each and max(each) - min(each) < _SAME:
        return [None if difference is None else 0.0 for difference in found]
    return found


def _counts(model: LanguageModel, corpora: Sequence[PreparedData]) -> np.ndarray | None:
    """Return how often each token stands in the training text; None, and said, if that is not known."""
    from latemask.text.rows import count_tokens

    if not corpora:
        say(f"{printable(model.name)}: its data is not known or gone, so word frequencies are no floor (--corpus DATA)")
        return None
    if any(data.tokenizer.get_vocab() != model.tokenizer.get_vocab() for data in corpora):
        say(
            f"{printable(model.name)}: the data was prepared with another tokenizer, so word frequencies are no floor; "
            "prepare it with --tokenizer MODEL"
        )
        return None
    counts = [count_tokens(data.shards("train"), data.token_bytes, data.vocabulary.size) for data in corpora]
    return np.asarray(sum(counts))


def _by_frequency(sentences: Sentences, counts: np.ndarray, like: list[float | None]) -> list[float | None]:
    """Score sentences by the frequencies of their tokens alone; those that the model was not asked stay out."""
    logarithms = np.log((counts + 1) / (counts.sum() + len(counts)))  # what never occurs is rare, not impossible
    inside = (ids[words >= 0] for ids, words in zip(sentences.ids, sentences.words, strict=True))
    sums = [math.fsum(logarithms[ids]) for ids in inside]
    return [None if known is None else value for value, known in zip(sums, like, strict=True)]


def _rows(models: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Terms down; each model with its standard error and its floors across."""
    head = ["per cent right"]
    for model in models:
        floors = [f"{words}" for name, words in FLOORS.items() if model[name] is not None]
        head += [model["model"], *floors]
    terms = list(dict.fromkeys(term for model in models for term in model["terms"]))
    rows = [head]
    for term in terms:
        rows.append([term, *(cell for model in models for cell in _cells(model, model["terms"].get(term)))])
    count = len(models[0]["paradigms"])
    rows.append([f"mean over {count} paradigms", *(cell for model in models for cell in _cells(model, model))])
    return [[printable(cell) for cell in row] for row in rows]


def _write_table(study: GrammarStudy) -> None:
    models = study.record["models"]
    said = "".join(f"- {escaped(verdict(model))}\n" for model in models)
    table = "\n".join(markdown_table(_rows(models)))
    write_text_atomically(study.out / TABLE, f"{table}\n\n{said}")


def _cells(model: dict[str, Any], of: dict[str, Any] | None) -> list[str]:
    floors = [name for name in FLOORS if model[name] is not None]
    if of is None:
        return ["–"] * (1 + len(floors))
    return [f"{of['mean']:.1f} ± {of['error']:.1f}", *(f"{of[name]:.1f}" for name in floors)]


def verdict(model: dict[str, Any]) -> str:
    """Say what a model's number is worth, beside its floors."""
    said = f"{printable(model['model'])}: {model['mean']:.1f} ± {model['error']:.1f} on {model['pairs']:,} pairs"
    known = [name for name in FLOORS if model[name] is not None]
    above = [name for name in known if _distance(model, name) > 2]
    words = []
    for name in known:
        gap, floor = model["mean"] - model[name], f"{FLOORS[name]} ({model[name]:.1f})"
        if name in above:
            words.append(f"{gap:.1f} above {floor}")
        elif _distance(model, name) < -2:
            words.append(f"{-gap:.1f} BELOW {floor}")
        else:
            words.append(f"not told apart from {floor}")
    level = [FLOORS[name] for name in known if name not in above]
    end = f"; it shows no grammar beyond {' and '.join(level)}" if level else ""
    return f"{said}; {', '.join(words)}{end}" if words else said


def _distance(model: dict[str, Any], floor: str) -> float:
    """By how many standard errors a model is above a floor."""
    gap = model["mean"] - model[floor]
    error = math.hypot(model["error"], model["errors_of_floors"][floor])
    return gap / error if error else math.copysign(math.inf, gap) if gap else 0.0
