"""Which of the bundled recipes a budget trains: the largest that sees enough text for its size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from latemask.budget.flops import count_weights
from latemask.ground.errors import UserError
from latemask.recipe import Recipe, load_recipe, spelled_out

SENSIBLE_TOKENS_A_WEIGHT = 20
RULE = (
    f"the largest recipe that sees at least {SENSIBLE_TOKENS_A_WEIGHT} tokens for each weight outside its word table "
    "(a rule of thumb taken over from decoders; more text is always better)"
)
CANDIDATES = ("mini-base", "small", "late-base", "late-large")


@dataclass(frozen=True)
class Candidate:
    """A recipe and what a budget would give it."""

    name: str
    recipe: Recipe
    steps: int

    @property
    def tokens(self) -> int:
        """Tokens it would see."""
        return self.steps * self.recipe.train.batch_size * self.recipe.length

    @property
    def tokens_a_weight(self) -> float:
        """Tokens for each weight outside the word table."""
        return self.tokens / count_weights(self.recipe).layers

    @property
    def is_sensible(self) -> bool:
        """Whether that is enough."""
        return self.tokens_a_weight >= SENSIBLE_TOKENS_A_WEIGHT


def candidates(steps_of: Callable[[Recipe], int], vocabulary: int) -> list[Candidate]:
    """Return the bundled recipes, smallest first, as far as the budget pays for a step of them."""
    found, refused = [], None
    for name in CANDIDATES:
        recipe = spelled_out(load_recipe(name), vocabulary)
        try:
            found.append(Candidate(name, recipe, steps_of(recipe)))
        except UserError as error:
            refused = refused or error
    if not found and refused:
        raise refused
    return sorted(found, key=lambda candidate: count_weights(candidate.recipe).layers)


def chosen(found: Sequence[Candidate]) -> Candidate:
    """Return the largest sensible one; the smallest where none is."""
    return next((candidate for candidate in reversed(found) if candidate.is_sensible), found[0])
