"""Starts: the first weights of a new encoder, one function each, and the new head of an encoder that had none.

`random` leaves what transformers drew. What can be counted in the corpus need not be learnt: which words are frequent,
and which stand near which. Importing this loads no torch. W vocabulary, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from latemask.ground.console import say
from latemask.ground.processes import decided_by_the_first, given_by_the_first
from latemask.recipe import STARTS, Recipe
from latemask.text import Mixture

if TYPE_CHECKING:
    from torch import Tensor

    from latemask.text.neighbours import Neighbours

_FEWEST_TOKENS = 8  # for each piece of the vocabulary
_PASSED = 0.8
_PAIRS_A_TOKEN, _COUNTED_A_SECOND = 0.35, 5e6
_PASSES_OF_SVD, _PRODUCTS_A_SECOND = 10, 6e9
_LAYERS_AT_THE_END = 2  # where no objective says which layers the [MASK]s join


def start(model: Any, recipe: Recipe, data: Mixture) -> str:
    """Give a new encoder its first weights; return the name of the start it got."""
    name = recipe.encoder.start

    def by_the_first() -> str:
        try:
            STARTS[name](model, Corpus(data), recipe.seed)
            return name
        except TooLittleText as error:
            say(f"{error}: starting at random")
            return "random"

    return name if name == "random" else _given(model, by_the_first)


def start_head(model: Any, recipe: Recipe, data: Mixture) -> str:
    """Give an encoder that was trained, but has no head, a new one; return the name of the start it got."""
    name = recipe.encoder.start

    def by_the_first() -> str:
        set_frequencies(model, Corpus(data))
        read_as_it_is(model)
        return name

    return name if name == "random" else _given(model, by_the_first)


def _given(model: Any, by_the_first: Callable[[], str]) -> str:
    """Let the first process find the weights; the others get the same bits."""
    import torch

    with torch.no_grad():
        found = decided_by_the_first(by_the_first)
        given_by_the_first(model.parameters())
    return found


def counting_seconds(recipe: Recipe, tokens: int) -> float | None:
    """Return about how long a start takes on one core, by two that were timed; None where nothing is counted."""
    encoder = recipe.encoder
    if encoder.start == "random" or encoder.init:
        return None
    from latemask.text.neighbours import MOST_TOKENS

    tokens = min(tokens, MOST_TOKENS)
    products = _PASSES_OF_SVD * (_PAIRS_A_TOKEN * tokens + (encoder.vocab_size or 0) * encoder.width) * encoder.width
    return tokens / _COUNTED_A_SECOND + products / _PRODUCTS_A_SECOND


class TooLittleText(Exception):
    """A corpus that says too little about its words."""


class Corpus:
    """What a start may ask of the data; nothing is counted before it does."""

    def __init__(self, data: Mixture):
        self.data = data

    @cached_property
    def neighbours(self) -> Neighbours:
        """Which tokens stand near which."""
        tokens, pieces = self.data.tokens, self.data.vocabulary.size
        if tokens < _FEWEST_TOKENS * pieces:
            raise TooLittleText(f"{tokens:,} tokens of text are too few to count the neighbours of {pieces:,} pieces")
        from latemask.text.neighbours import neighbours_of  # scipy: not for --help

        return neighbours_of(self.data)

    @cached_property
    def frequencies(self) -> np.ndarray:
        """How often each token occurs [W]; soon counted, however little text there is."""
        from latemask.text.neighbours import frequencies_of

        return frequencies_of(self.data)

    def vectors(self, width: int) -> np.ndarray:
        """Return a vector of length one for every token [W, D], zero where too little is known of it."""
        from latemask.text.word_vectors import word_vectors

        return word_vectors(self.neighbours, width, self.data.vocabulary.special)


@STARTS.register("random")
def random(model: Any, corpus: Corpus, seed: int) -> None:
    """Start as transformers draws the weights."""


@STARTS.register("words")
def words(model: Any, corpus: Corpus, seed: int) -> None:
    """Start with the corpus' word vectors, and with its frequencies in the head."""
    set_words(model, corpus, seed)
    set_frequencies(model, corpus)


@STARTS.register("corpus")
def neighbours(model: Any, corpus: Corpus, seed: int) -> None:
    """Start as a bag of neighbours: before the first step a [MASK] sees something like the mean of the words near."""
    words(model, corpus, seed)
    attend_near(model)
    pass_on(model, seed)
    model.objective.start_as_a_word(model, typical_word(model, corpus), corpus.data.vocabulary)
    read_as_it_is(model)


# The parts


def set_words(model: Any, corpus: Corpus, seed: int) -> None:
    """Give the tokens that are known their vectors, turned at random, as long as the others are."""
    import torch

    width = model.words.shape[1]
    vectors = torch.from_numpy(corpus.vectors(width))
    known = vectors.any(1)
    turned = vectors[known] @ orthogonal(width, seed)
    model.words[: len(vectors)][known] = turned * model.config.initializer_range * math.sqrt(width)


def set_frequencies(model: Any, corpus: Corpus) -> None:
    """Let the head begin with how frequent each token is, if it has a number for each."""
    import torch

    if model.head.bias is None:
        return
    counts = torch.from_numpy(corpus.frequencies).double()
    logs = (counts + 0.5).log()
    model.head.bias[: len(logs)] = logs - (logs * counts).sum() / counts.sum()  # near 0, where numbers are exact


def attend_near(model: Any) -> None:
    """Let every layer attend to what is near and alike."""
    for layer in model.family.layers(model.encoder):
        model.family.start_near(layer)


def pass_on(model: Any, seed: int) -> None:
    """Let the layers that [MASK]s join hand on what they attend to."""
    layers = model.family.layers(model.encoder)
    whole = model.objective.layers_run_whole(model)
    joined = layers[-_LAYERS_AT_THE_END if whole is None else whole :]
    for number, layer in enumerate(joined, 1):
        turn = orthogonal(model.words.shape[1], seed, number).to(model.words)
        model.family.start_passing(layer, _PASSED * turn)


def typical_word(model: Any, corpus: Corpus) -> Tensor:
    """Return twice the mean of all words, by frequency: it attends as a word does."""
    import torch

    shares = torch.from_numpy(corpus.frequencies / corpus.frequencies.sum()).to(model.words)
    return 2 * shares @ model.words[: len(shares)]


def read_as_it_is(model: Any) -> None:
    """Let the head compare states with words as they are; a plain one does."""
    import torch

    if model.head.dense is not None:
        torch.nn.init.eye_(model.head.dense.weight)


def orthogonal(width: int, seed: int, number: int = 0) -> Tensor:
    """Draw a rotation [D, D]."""
    import torch

    generator = torch.Generator().manual_seed((seed << 16) + number)
    return torch.nn.init.orthogonal_(torch.empty(width, width), generator=generator)
