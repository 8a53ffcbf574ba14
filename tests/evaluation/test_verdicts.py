"""The verdict: what a table says in words, and never anything else than the table."""

import re
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latemask.evaluation.display import as_markdown
from latemask.evaluation.floors import CONSTANT, FREQUENT_TAG, TFIDF, Floor
from latemask.evaluation.protocol import Protocol
from latemask.evaluation.results import Results, Trial
from latemask.evaluation.verdicts import certainty, verdict

OVERLAP = "the ranges overlap, so seeds alone could make this difference"
ONE_RUN = "one run has no range, so seeds alone could make this difference"
NO_CONTROL = "no never-trained control was run, so this does not show what pre-training gives."


def results_of(scores, floors=((TFIDF, 0.6),), collapsed=0, constant=0.5, shapes=None) -> Results:
    """Return results as runs would leave them: encoder → task → one score for each seed."""
    results = Results(Path("results.json"), Protocol())
    for task in dict.fromkeys(task for found in scores.values() for task in found):
        known = [asdict(Floor(name, "", score, {})) for name, score in floors]
        results.tasks[task] = {"name": task, "identity": task, "part": "", "headline": ["accuracy"], "cut": {},
                               "constant": {"score": constant, "metrics": {}}, "floors": known}  # fmt: skip
    for name, found in scores.items():
        shape = (shapes or {}).get(name, "one")
        is_random = name.startswith("random:")
        results.encoders[name] = {"name": name, "identity": name, "random": is_random, "architecture": shape}
        results.trials += [
            Trial(name, task, 1e-4, seed, score, {}, 1, seed < collapsed)
            for task, values in found.items()
            for seed, score in enumerate(values)
        ]
    return results


def said_of(scores, **more):
    return verdict(results_of({name: {"mood": values} for name, values in scores.items()}, **more))


def test_the_better_of_two_encoders_is_named_with_the_difference_and_its_certainty():
    control = {"random:a": [0.62, 0.63, 0.64]}
    said = said_of({"a": [0.80, 0.81, 0.82], "b": [0.77, 0.78, 0.79], **control})
    assert said == [
        "mood: use a (81.0), 3.0 points above b (78.0); the ranges do not overlap.",
        "mood: above every floor: a by 18.0 points over random:a (63.0), b by 15.0 points over random:a (63.0).",
    ]
    said = said_of({"b": [0.77, 0.78, 0.81], "a": [0.80, 0.81, 0.82], **control})
    assert said[0] == f"mood: use a (81.0), 3.0 points above b (78.0); {OVERLAP}."
    said = said_of({"a": [0.81], "b": [0.77], **control})
    assert said[0] == f"mood: use a (81.0), 4.0 points above b (77.0); {ONE_RUN}."


def test_what_the_table_shows_as_equal_is_level():
    said = said_of({"a": [0.80001], "b": [0.80049]})
    assert said[0] == "mood: use a (80.0), level with b (80.0)."


def test_an_encoder_below_tf_idf_is_not_recommended():
    """The case this was made for: 74.0 beside a majority of 18.8 looked like success."""
    said = said_of({"a": [0.73, 0.74, 0.75]}, floors=[(TFIDF, 0.81)], constant=0.188)
    assert said == [
        "mood: do not use a (74.0), for TF-IDF + linear model has 81.0.",
        "mood: a (74.0) is 7.0 points below TF-IDF + linear model (81.0): a linear model on n-gram counts is better "
        "for this task.",
        f"mood: {NO_CONTROL}",
    ]


def test_an_encoder_below_its_control_is_said_to_be_hurt():
    said = said_of({"a": [0.62, 0.63], "random:a": [0.80, 0.81], "b": [0.61, 0.60]})
    assert said[0] == (
        "mood: use none of these encoders, for random:a, never trained, has 80.5; the best of them is a (62.5), "
        "2.0 points above b (60.5); the ranges do not overlap."
    )
    assert said[1] == (
        "mood: a (62.5) is 18.0 points BELOW the never-trained control random:a (80.5): pre-training hurts here; "
        "the ranges do not overlap."
    )
    assert said[2].startswith("mood: b (60.5) is 20.0 points BELOW the never-trained control random:a")


def test_an_encoder_level_with_floors_shows_nothing():
    said = said_of({"a": [0.6], "random:a": [0.6]}, constant=0.6)
    assert said[1:] == [
        "mood: a (60.0) is level with the majority class or mean (60.0): an answer that reads nothing is as good for "
        "this task.",
        "mood: a (60.0) is level with TF-IDF + linear model (60.0): a linear model on n-gram counts is as good for "
        "this task.",
        "mood: a (60.0) is level with the never-trained control random:a (60.0): pre-training shows nothing here.",
    ]


def test_being_above_the_control_by_chance_is_said():
    said = said_of({"a": [0.70, 0.74], "random:a": [0.69, 0.72]})
    assert f"mood: a (72.0) is 1.5 points above the never-trained control random:a (70.5), but {OVERLAP}." in said


def test_an_encoder_is_held_against_every_control_and_only_its_own_says_what_pre_training_does():
    scores = {"a": [0.70], "b": [0.70], "random:a": [0.65], "random:b": [0.75]}
    said = said_of(scores, shapes={"a": "small", "random:a": "small"})
    of_a, of_b = (line for line in said if "BELOW the never-trained control random:b" in line)
    assert "its architecture does as well without pre-training" in of_a
    assert "pre-training hurts here" in of_b
    assert not any("above every floor" in line for line in said)


def test_taggers_are_held_against_looking_words_up():
    said = said_of({"a": [0.85]}, floors=[(FREQUENT_TAG, 0.86)])
    assert said[1].endswith(
        "below the most frequent tag of each word (86.0): looking words up is better for this task."
    )


def test_collapsed_runs_and_missing_ones_are_said():
    said = verdict(results_of({"a": {"mood": [0.5, 0.8]}, "b": {"tone": [0.7]}}, collapsed=1))
    assert "mood: 1 of 2 runs of a collapsed to one answer." in said
    assert "mood: b was not run on it." in said
    assert not any("On average" in line for line in said)


def test_several_tasks_have_a_summary():
    scores = {
        "a": {"mood": [0.80, 0.82], "tone": [0.70, 0.72]},
        "b": {"mood": [0.78, 0.79], "tone": [0.55, 0.56]},
        "random:a": {"mood": [0.61, 0.62], "tone": [0.62, 0.61]},
    }
    said = verdict(results_of(scores))
    assert said[-3:] == [
        "On average over 2 tasks: a (76.0), 9.0 points above b (67.0); the ranges do not overlap.",
        "a is above every floor on all tasks.",
        "b is not above every floor on tone.",
    ]


def test_controls_alone_leave_nothing_to_choose():
    assert said_of({"random:a": [0.7]}) == ["mood: no trained encoder was run, so there is nothing to choose."]


def test_names_from_outside_are_escaped():
    assert "\x1b" not in "".join(verdict(results_of({"\x1b[31m": {"\x1b[2J": [0.7]}}, floors=[("\x1b[0m", 0.9)])))


@pytest.mark.parametrize(
    ("better", "worse", "said"),
    [([3, 4], [1, 2], "the ranges do not overlap"), ([2, 4], [1, 2], OVERLAP), ([4], [1, 2], ONE_RUN)],
)
def test_how_sure_a_difference_is(better, worse, said):
    assert certainty(better, worse) == said


# The words against the table, whatever the scores: only the Markdown is read, as somebody else would.

NAMES = ("a", "b", "c", "random:a", "random:b")
SCORES = st.lists(st.one_of(st.sampled_from([0.5, 0.6, 0.6004]), st.floats(-1, 1)), min_size=1, max_size=3)


@st.composite
def any_results(draw):
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    tasks = draw(st.sampled_from([["mood"], ["mood", "tone"]]))
    scores = {name: {task: draw(SCORES) for task in tasks} for name in names}
    floors = draw(st.lists(st.sampled_from([(TFIDF, 0.6), (FREQUENT_TAG, 0.55)]), unique=True))
    return results_of(scores, floors=floors)


def table_of(results):
    """Return row → task → number, as it stands in the table."""
    head, _, *rows = [line.split("|")[1:-1] for line in as_markdown(results).split("\n\n")[0].splitlines()]
    names = [cell.strip() for cell in head[1:]]
    return {row[0].strip(): dict(zip(names, (float(c.split("(")[0]) for c in row[1:]), strict=True)) for row in rows}


@settings(max_examples=60, deadline=None)
@given(any_results())
def test_the_words_never_contradict_the_table(results):
    table, said = table_of(results), verdict(results)
    trained = [name for name in table if name in ("a", "b", "c")]
    floors = [name for name in table if name not in trained]
    for task in results.tasks:
        about = [line.removeprefix(f"{task}: ") for line in said if line.startswith(f"{task}: ")]
        if not trained:
            assert about == ["no trained encoder was run, so there is nothing to choose."]
            continue
        highest = max(table[floor][task] for floor in floors)
        best = max(table[name][task] for name in trained)
        chosen, score = re.search(r"use (?:none.* best of them is )?(\w+) \((-?[\d.]+)\)", about[0]).groups()
        assert float(score) == table[chosen][task] == best
        assert about[0].startswith("use ") == (best > highest) or about[0].startswith("use none")
        assert ("use none" in about[0] or "do not use" in about[0]) == (best <= highest)
        for name in trained:
            for floor in floors:
                called = floor.removesuffix(" (never trained)")
                lines = [line for line in about if line.startswith(f"{name} (") and f"{called} (" in line]
                lines = [line for line in lines if "points above" not in line]
                assert len(lines) == (table[name][task] <= table[floor][task])
                for line in lines:
                    below = table[floor][task] - table[name][task]
                    assert ("level with" in line) == (below == 0)
                    assert below == 0 or f" {below:.1f} points " in line
        above = [line for line in about if line.startswith("above every floor")]
        named = re.findall(r"(?::|,) (\w) by", above[0]) if above else []
        assert named == [name for name in trained if table[name][task] > highest]
    if len(results.tasks) > 1 and trained:
        (line,) = (line for line in said if line.startswith("On average"))
        first, score = re.match(r"On average over 2 tasks: (\w) \((-?[\d.]+)\)", line).groups()
        assert float(score) == table[first]["average"] == max(table[name]["average"] for name in trained)
        for name in trained:
            low = [task for task in results.tasks if any(table[name][task] <= table[f][task] for f in floors)]
            where = f"not above every floor on {', '.join(low)}" if low else "above every floor on all tasks"
            assert f"{name} is {where}." in said


def test_every_floor_of_the_table_is_known_to_the_words():
    said = said_of({"a": [0.1]}, floors=[(TFIDF, 0.6), (FREQUENT_TAG, 0.7), ("a new one", 0.8)])
    for floor in (CONSTANT, TFIDF, FREQUENT_TAG, "a new one"):
        assert any(f"below {floor} (" in line or f"below the {floor} (" in line for line in said)
