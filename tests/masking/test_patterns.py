"""Patterns with a shape: exact counts, units whole but for one, every position as likely as any other, purity."""

import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from latemask import UserError, pretrain
from latemask.ground.errors import TimeIsUp
from latemask.masking import patterns
from latemask.masking.batches import Collator
from latemask.masking.masks import draw_masks
from latemask.masking.patterns import LONGEST_SPAN, PATTERNS, by_units, uniform, vocabulary_for
from latemask.masking.randomness import Fork, Stream, draws, fork, key
from latemask.recipe import BudgetRecipe, MaskCounts, MaskRecipe, TrainRecipe
from latemask.run_folder import RunFolder
from latemask.text import Mixture, PreparedData, Vocabulary
from latemask.text.collocations import Collocations
from latemask.text.units import Units, with_units
from latemask.text.words import all_words, word_starts, words_of
from tests.conftest import VOCABULARY, joining, make_rows, tiny_recipe
from tests.training.test_pretraining import same_weights

SHAPES = ("word", "span", "pmi")
EOS = VOCABULARY.eos


def vocabulary(units=(), rest=3) -> Vocabulary:
    """Pieces of which one in `rest` goes on with a word; the units are lists of words, each a list of ids."""
    vocab = {("##" if n % rest == 1 else "") + f"w{n}": n for n in range(VOCABULARY.size)}
    content = {"model": {"type": "WordPiece", "vocab": vocab, "continuing_subword_prefix": "##"}, "added_tokens": []}
    words = words_of(content, VOCABULARY.size, VOCABULARY.special)
    assert words is not None
    pieces = [[number for word in unit for number in word] for unit in units]
    found = Collocations(
        np.array([number for unit in pieces for number in unit], np.int64),
        np.cumsum([len(one) for one in pieces], dtype=np.int64),
        np.array([len(unit) for unit in units], np.int64),
        np.zeros(len(units)),
        np.ones(len(units), np.int64),
    )
    return replace(VOCABULARY, words=words, units=Units.of([found] if units else [], words))


def keys_of(count: int, seed: int = 0) -> np.ndarray:
    return key(seed, Stream.MASK, np.arange(count))


@pytest.fixture
def begun(monkeypatch):
    """What the patterns say of units: where they begin, by call."""
    seen = []
    whole = by_units

    def looking(ids, keys, starts, vocabulary):
        seen.append(starts.copy())
        return whole(ids, keys, starts, vocabulary)

    monkeypatch.setattr(patterns, "by_units", looking)
    return seen


def units_in(ids, starts) -> list[tuple[int, int]]:
    """First and last position of each unit of one row."""
    firsts = np.flatnonzero(starts)
    return list(zip(firsts.tolist(), [*(firsts[1:] - 1).tolist(), len(ids) - 1], strict=True))


def assert_whole_but_one(chosen: set[int], ids, starts) -> None:
    """Every unit is taken or left, and one at most is cut."""
    cut = [(a, b) for a, b in units_in(ids, starts) if 0 < len(chosen & set(range(a, b + 1))) < b + 1 - a]
    assert len(cut) <= 1, cut


@st.composite
def cases(draw):
    length = draw(st.sampled_from([8, 16, 33, 80]))
    rows = make_rows(draw(st.integers(1, 4)), length, draw(st.integers(0, 999)))
    rows[np.random.default_rng(draw(st.integers(0, 99))).random(rows.shape) < draw(st.sampled_from([0, 0.1, 0.5]))] = (
        EOS
    )
    rows[:, 0] = VOCABULARY.bos
    mask = MaskRecipe(rate=draw(st.floats(1 / length, 0.5)), drop=draw(st.floats(0, 0.3)))
    counts = MaskCounts.of(mask, length)
    return rows, replace(counts, random=counts.predicted // 5, kept=counts.predicted // 7)


UNITS = vocabulary([[[n], [n + 2 if n % 3 == 0 else n + 1]] for n in range(6, 290, 3)])


@pytest.mark.parametrize("pattern", SHAPES)
@settings(max_examples=40, deadline=None)
@given(case=cases(), seed=st.integers(0, 2**32))
def test_counts_are_exact_and_special_tokens_come_last(pattern, case, seed):
    rows, counts = case
    masks = draw_masks(rows, np.arange(len(rows)), counts, UNITS, seed, pattern)
    assert masks.masked.shape[1] == counts.masked
    assert masks.corrupted.shape[1] == counts.corrupted
    assert masks.dropped.shape[1] == counts.dropped
    parts = zip(masks.visible, masks.masked, masks.dropped, masks.corrupted, strict=True)
    for row, (visible, masked, dropped, corrupted) in zip(rows, parts, strict=True):
        assert sorted([*visible, *masked, *dropped]) == list(range(counts.length))
        taken = {*masked.tolist(), *dropped.tolist(), *corrupted.tolist()}
        special = {n for n in range(counts.length) if row[n] in VOCABULARY.special}
        assert 0 not in taken
        assert not taken & special or taken | special == set(range(counts.length))


@pytest.mark.parametrize("pattern", SHAPES)
@settings(max_examples=40, deadline=None)
@given(case=cases(), seed=st.integers(0, 99))
def test_units_are_whole_but_the_one_that_a_count_ends_in(pattern, case, seed):
    rows, counts = case
    seen = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(patterns, "by_units", lambda *given: seen.append(given[2].copy()) or by_units(*given))
        order = PATTERNS[pattern](rows, keys_of(len(rows), seed), counts, UNITS)
    words = word_starts(rows, UNITS.words)
    for row, taken, starts, of_words in zip(rows, order, seen[0], words, strict=True):
        assert sorted(taken) == list(range(counts.length))
        assert not (starts & ~of_words).any()  # a unit is of whole words
        for count in (1, counts.predicted, counts.predicted + counts.dropped):
            assert_whole_but_one(set(taken[:count].tolist()), row, starts)
        if pattern != "pmi":
            assert_whole_but_one(set(taken[: counts.predicted].tolist()), row, starts)


def test_words_are_those_of_the_pieces(begun):
    rows = np.array([[0, 10, 11, 13, 12, 2, 13, 14, 16, 16]])
    PATTERNS["word"](rows, keys_of(1), None, vocabulary())  # 10, 13 and 16 go on, but not behind <s> and </s>
    assert begun[0].astype(int).tolist() == [[1, 1, 1, 0, 1, 1, 1, 1, 0, 0]]


@pytest.mark.parametrize("length", [16, 128, 512, 70_000])
def test_units_of_one_position_are_uniform_at_every_length(length):
    rows, keys = make_rows(2, length), keys_of(2)
    starts = np.ones(rows.shape, bool)
    assert (by_units(rows, keys, starts, VOCABULARY) == uniform(rows, keys, None, VOCABULARY)).all()
    one = by_units(rows, keys, starts & (np.arange(length) < 2), VOCABULARY)  # all but <s> in one
    assert all(order.tolist() in ([*range(1, length), 0], [*range(length - 1, -1, -1)]) for order in one)
    halves = np.zeros(rows.shape, bool)
    halves[:, [0, 1, length // 2]] = True
    parts = {tuple(part[::step]) for part in (range(1, length // 2), range(length // 2, length)) for step in (1, -1)}
    for order in by_units(rows, keys, halves, VOCABULARY).tolist():
        border = next(n for n in range(length) if (order[n] < length // 2) != (order[0] < length // 2))
        assert {tuple(order[:border]), tuple(order[border:-1])} <= parts


def test_uniform_is_what_it_was_before_there_were_units():
    """Numbers of the version before: runs go on with them."""
    rows = make_rows(2, 12)
    rows[:, 5] = EOS
    order = uniform(rows, key(3, Stream.MASK, np.array([0, 10**9])), None, VOCABULARY)
    assert order.tolist() == [[9, 3, 8, 1, 7, 2, 6, 4, 10, 11, 5, 0], [9, 11, 2, 10, 3, 6, 8, 4, 7, 1, 5, 0]]


def test_lengths_of_spans_are_the_truncated_geometric(begun):
    rows = make_rows(1, 512).repeat(400, axis=0)
    PATTERNS["span"](rows, keys_of(400), None, replace(VOCABULARY, words=all_words(300)))
    lengths = [np.diff(np.flatnonzero(starts[1:]))[1:61] for starts in begun[0]]  # the first is cut, and the last
    assert min(map(len, lengths)) == 60
    found = np.bincount(np.concatenate(lengths), minlength=LONGEST_SPAN + 1)[1:]
    expected = 0.2 * 0.8 ** np.arange(LONGEST_SPAN)
    expected *= found.sum() / expected.sum()
    assert len(found) == LONGEST_SPAN
    assert chisquare(found, expected).pvalue > 0.001
    assert np.average(np.arange(1, 11), weights=found) == pytest.approx(3.80, abs=0.05)


def test_a_row_begins_anywhere_in_a_span(begun):
    rows = make_rows(1, 64).repeat(20_000, axis=0)
    PATTERNS["span"](rows, keys_of(20_000), None, replace(VOCABULARY, words=all_words(300)))
    share = begun[0].mean(axis=0)
    assert np.abs(share[2:] - 1 / 3.797).max() < 0.0125  # as likely at every position: four standard deviations


def test_long_spans_are_chosen_as_often_as_short_ones(begun):
    """What orders units is not what cut the row into them."""
    rows = make_rows(1, 512).repeat(4000, axis=0)
    order = PATTERNS["span"](rows, keys_of(4000), None, replace(VOCABULARY, words=all_words(300)))
    numbers = np.cumsum(begun[0], axis=1)
    first = np.take_along_axis(numbers, order[:, :1], axis=1)
    inner = (first[:, 0] > 2) & (first[:, 0] < numbers[:, -1])  # neither <s> nor cut
    lengths = (numbers == first).sum(axis=1)[inner]
    assert len(lengths) > 3900
    assert lengths.mean() == pytest.approx(3.80, abs=0.16)  # four standard errors


def test_spans_end_at_special_tokens_and_with_their_words(begun):
    rows = make_rows(500, 64)
    rows[:, 20] = rows[:, 40] = EOS
    PATTERNS["span"](rows, keys_of(500), None, vocabulary())
    assert begun[0][:, [0, 1, 20, 21, 40, 41]].all()
    assert not (begun[0] & ~word_starts(rows, vocabulary().words)).any()


@pytest.mark.parametrize("pattern", ["word", "span"])
def test_every_position_is_as_likely_as_any_other(pattern):
    known = replace(VOCABULARY, words=all_words(300))
    order = PATTERNS[pattern](make_rows(1, 65).repeat(40_000, axis=0), keys_of(40_000), None, known)
    share = np.bincount(order[:, :16].ravel(), minlength=65)[1:] / 40_000
    assert np.abs(share - 0.25).max() < 0.0125


def test_spans_hide_neighbours_together():
    rows, known = make_rows(2000, 128), replace(VOCABULARY, words=all_words(300))
    together = {}
    for pattern in ("uniform", "span"):
        hidden = np.zeros(rows.shape, bool)
        np.put_along_axis(hidden, PATTERNS[pattern](rows, keys_of(2000), None, known)[:, :38], True, axis=1)
        together[pattern] = (hidden[:, 1:-1] & hidden[:, 2:]).mean()
    assert together["uniform"] == pytest.approx(0.3**2, abs=0.005)
    assert together["span"] > 0.2


# Collocations


def slow_units(row, known, units, key_of_row) -> list[bool]:
    """The oracle: the longest first, of equals the one that drew most, one after another."""
    starts = word_starts(row[None], known.words)[0]
    firsts = np.flatnonzero(starts).tolist()
    words = [tuple(row[a:b].tolist()) for a, b in zip(firsts, [*firsts[1:], len(row)], strict=True)]
    drawn = draws(fork(key_of_row[None], Fork.OVERLAPS), len(row))[0]
    free = [False, *[True] * (len(words) - 1)]
    for length in range(5, 1, -1):
        there = [n for n in range(len(words) - length + 1) if tuple(words[n : n + length]) in units]
        for first in sorted(there, key=lambda n: -int(drawn[firsts[n] - 1])):
            if all(free[first : first + length]):
                free[first : first + length] = [False] * length
                starts[firsts[first + 1 : first + length]] = False
    return starts.tolist()


def test_collocations_are_those_of_a_slow_loop(begun):
    draw = np.random.default_rng(0)
    words = [[5], [6], [8], [9, 10], [11, 13, 16]]  # 10, 13, 16 go on
    units = {
        tuple(tuple(words[n]) for n in draw.integers(0, 5, length))
        for length in (2, 2, 2, 2, 3, 3, 4, 5, 5)
        for _ in "ab"
    }
    known = vocabulary([[list(word) for word in unit] for unit in sorted(units)])
    rows = np.zeros((60, 48), np.int64)
    for row in rows[:, 1:]:
        row[:] = np.concatenate([words[n] for n in draw.integers(0, 5, 48)])[:47]
    rows[draw.random(rows.shape) < 0.03] = EOS
    keys = keys_of(60, 5)
    PATTERNS["pmi"](rows, keys, None, known)
    expected = [slow_units(row, known, units, one) for row, one in zip(rows, keys, strict=True)]
    assert begun[0].tolist() == expected
    assert (begun[0] != word_starts(rows, known.words)).sum() > 300


def test_the_longest_collocation_wins_and_no_row_goes_on_in_the_next(begun):
    a, b, c = [5], [6], [8]
    known = vocabulary([[a, b], [b, c], [a, b, c]])
    rows = np.array([[0, 5, 6, 8, 5, 6, 9, 5], [6, 8, 9, 6, 8, 9, 9, 9]])
    PATTERNS["pmi"](rows, keys_of(2), None, known)
    assert begun[0].astype(int).tolist() == [[1, 1, 0, 0, 1, 0, 1, 1], [1, 1, 1, 1, 0, 1, 1, 1]]


def test_which_of_two_that_overlap_is_chance(begun):
    known = vocabulary([[[5], [6]], [[6], [8]]])
    rows = np.array([[0, 5, 6, 8]]).repeat(4000, axis=0)
    PATTERNS["pmi"](rows, keys_of(4000), None, known)
    found = Counter(map(tuple, begun[0].astype(int).tolist()))
    assert set(found) == {(1, 1, 0, 1), (1, 1, 1, 0)}
    assert abs(found[1, 1, 0, 1] - 2000) < 130


# Purity, and what the data have


@pytest.mark.parametrize("pattern", SHAPES)
def test_a_mask_depends_on_seed_and_index_alone(pattern):
    rows, counts = make_rows(24, 40), MaskCounts.of(MaskRecipe(rate=0.4), 40)
    together = draw_masks(rows, np.arange(24), counts, UNITS, 3, pattern).masked
    alone = [draw_masks(rows[i : i + 1], np.array([i]), counts, UNITS, 3, pattern).masked[0] for i in range(24)]
    assert (together == alone).all()
    assert (together != draw_masks(rows, np.arange(24), counts, UNITS, 4, pattern).masked).any()


def test_a_few_draws_that_do_not_reach_the_end_of_a_row_are_the_beginning_of_more(monkeypatch):
    keys = keys_of(300)
    few = patterns._span_starts(keys, 200)
    monkeypatch.setattr(patterns, "LONGEST_SPAN", 200)
    assert (few == patterns._span_starts(keys, 200)).all()
    short = patterns._span_starts(keys, 31)
    assert (short == patterns._span_starts(keys, 200)[:, :31]).all()


@pytest.fixture(scope="module")
def with_pmi(data, tmp_path_factory) -> PreparedData:
    folder = tmp_path_factory.mktemp("shapes") / "data"
    shutil.copytree(data.folder, folder)
    return with_units(PreparedData.open(folder), 400)


def recipe_of(pattern: str, **mask) -> object:
    train = TrainRecipe(batch_size=8, log_every=1, eval_every=1000, save_every=2, learning_rate=3e-3, precision="fp32")
    return tiny_recipe(mask=MaskRecipe(pattern, **mask), train=train, budget=BudgetRecipe(steps=4))


@pytest.mark.parametrize("objective", ["late", "early"])
@pytest.mark.parametrize("pattern", SHAPES)
def test_a_run_of_each(with_pmi, tmp_path, pattern, objective):
    mask = {"rate": 0.4, "rate_end": 0.2, "rate_schedule": "cosine", "random": 0.1, "keep": 0.1, "drop": 0.1}
    recipe = replace(recipe_of(pattern, **mask), objective=objective)
    run = pretrain(recipe, data=with_pmi.folder, out=tmp_path / "run")
    assert run.is_finished()
    assert np.isfinite([row["loss"] for row in run.metrics() if "loss" in row]).all()


def test_a_run_goes_on_to_the_same_bits_and_only_with_the_units_it_began_with(with_pmi, tmp_path):
    recipe = recipe_of("pmi")
    where = {"data": with_pmi.folder, "out": tmp_path / "run"}
    with pytest.raises(TimeIsUp):
        pretrain(recipe, **where, stop_after="0s")
    record = RunFolder(tmp_path / "run").record
    RunFolder(tmp_path / "run").update(data={**record["data"], "units": ["others"]})
    with pytest.raises(UserError, match="the units of the data"):
        pretrain(recipe, **where, resume=True)
    RunFolder(tmp_path / "run").update(data=record["data"])
    resumed = pretrain(recipe, **where, resume=True)
    assert same_weights(resumed, pretrain(recipe, data=with_pmi.folder, out=tmp_path / "whole"))


def test_loader_processes_draw_what_the_process_itself_draws(with_pmi, tmp_path):
    recipe = recipe_of("pmi")
    runs = [
        pretrain(replace(recipe, train=replace(recipe.train, workers=n)), data=with_pmi.folder, out=tmp_path / f"{n}")
        for n in (0, 1)
    ]
    assert same_weights(*runs)


def test_what_a_pattern_needs_and_the_data_have_not_is_refused_before_anything_is_written(data, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"mask.pattern pmi needs units of words, and .* with --pmi 10000") as caught:
        pretrain(recipe_of("pmi"), data=data.folder, out=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(PreparedData, "words", None)
    for pattern in ("word", "span", "pmi"):
        with pytest.raises(UserError, match=f"mask.pattern {pattern} needs words, .* take mask.pattern uniform"):
            vocabulary_for(pattern, Mixture.open(data.folder))
    assert vocabulary_for("uniform", Mixture.open(data.folder)).words is None


def test_a_mixture_has_the_units_of_all_its_parts(data, with_pmi):
    mixture = Mixture.open([data.folder, with_pmi.folder])
    assert mixture.record["units"] == [None, with_pmi.units_checksum]
    known = vocabulary_for("pmi", mixture)
    alone = vocabulary_for("pmi", Mixture.open(with_pmi.folder))
    rows = data.rows("train", 64).take(range(20))
    assert (PATTERNS["pmi"](rows, keys_of(20), None, known) == PATTERNS["pmi"](rows, keys_of(20), None, alone)).all()
    assert (PATTERNS["pmi"](rows, keys_of(20), None, known) != PATTERNS["word"](rows, keys_of(20), None, known)).any()


def test_random_and_kept_tokens_fall_on_whole_words():
    rows, known = make_rows(200, 64), vocabulary(rest=2)
    counts = MaskCounts.of(MaskRecipe(rate=0.5, random=0.3, keep=0.3), 64)
    order = PATTERNS["word"](rows, keys_of(200), counts, known)
    starts = word_starts(rows, known.words)
    for row, taken, of_words in zip(rows, order, starts, strict=True):
        assert_whole_but_one(set(taken[: counts.random].tolist()), row, of_words)
        assert_whole_but_one(set(taken[: counts.corrupted].tolist()), row, of_words)


def test_validation_is_uniform_whatever_the_pattern(data):
    assert Collator.validating(recipe_of("span"), data.vocabulary).pattern == "uniform"
    assert joining("self").as_validated.mask.pattern == "uniform"
