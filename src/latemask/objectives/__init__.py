"""Objectives: what is learnt. One file each, with all that concerns it.

An objective owns its options, its batch, its forward pass, its cost, how it fills a mask, and its words in cards and
reports. It is one object without state: weights live in the model, which is an argument. Importing one loads no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from latemask.families import FAMILIES
from latemask.masking.masks import Masks
from latemask.objectives.costs import Flops, Weights, linear, norm
from latemask.recipe import OBJECTIVES, Recipe
from latemask.text.tokenizer import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["OBJECTIVES", "Flops", "NoOptions", "Objective", "Weights"]


@dataclass(frozen=True)
class NoOptions:
    """The options of an objective that has none."""


class Objective(ABC):
    """What the rest of the house asks of an objective."""

    section: str | None = None
    """The name of its options in a recipe; none where it has none."""
    Options: type = NoOptions
    """Its options: a frozen dataclass, with a default and a line of help for each."""
    called: dict[str, str] = {}  # noqa: RUF012
    """Of its options, those that `settings` calls by another name."""
    fused: dict[str, int] = {}  # noqa: RUF012
    """Of the linear maps that it adds, those that are several in one matrix: their names, and how many."""
    finish: str | None = None
    """The objective that the end of a run may have instead, with [MASK]s in the input; none where they always are."""
    mask_in_input = False
    """Whether a model that ends with it knows the mask token, as a masked language model does."""
    is_baseline = False
    """Whether the others are held against it in comparisons."""

    # What a recipe makes of it

    def problem(self, recipe: Recipe) -> str | None:
        """Say what in a recipe it cannot do."""
        return None

    # The batch

    @abstractmethod
    def batch(self, ids: np.ndarray, masks: Masks, vocabulary: Vocabulary, options: Any) -> dict[str, np.ndarray]:
        """Lay out one batch from the true rows [B, L] and their masks; `labels` [B, P] must be in it."""

    # The model

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        """Return what its model must know beside the encoder's config: written into config.json."""
        return {}

    def options_in(self, settings: dict[str, Any]) -> Any:
        """Return the options that gave a config.json its settings."""
        names = {field.name: self.called.get(field.name, field.name) for field in fields(self.Options)}
        return self.Options(**{ours: settings[theirs] for ours, theirs in names.items() if theirs in settings})

    def add_weights(self, model: Any, settings: Any) -> None:
        """Give the model what it has beside encoder and head."""
        return

    def start(self, model: Any) -> None:
        """Set the first values of those weights, where they are not what transformers would draw."""
        return

    def start_from(self, model: Any, vocabulary: Vocabulary) -> None:
        """The same where the encoder was trained before."""
        return

    def start_as_a_word(self, model: Any, word: Tensor, vocabulary: Vocabulary) -> None:
        """Let [MASK] be like a word [D], where a new encoder starts from what was counted in the corpus."""
        model.words[vocabulary.mask] = word

    def left_behind(self, weights: dict[str, Tensor], words: str, mask: int) -> dict[str, Tensor]:
        """Return a model's weights as the objective takes them that follows; `words` names the word table."""
        return weights

    @abstractmethod
    def forward(self, model: Any, *args: Any, **batch: Any) -> Any:
        """Return the loss or, without labels, the logits [B, P, vocabulary]; usually by `model.predict`."""

    def row_losses(self, model: Any, **batch: Tensor) -> Tensor:
        """Return the loss of each row of a batch [B], whose mean is the batch's; called where no gradient is wanted.

        Here: `forward`, whose `model.predict` gives them. A loss that comes from elsewhere is taken row by row, which
        is slow and costs another forward pass: such an objective says here how its rows are told apart.
        """
        import torch

        loss: Tensor = self.forward(model, **batch).loss
        rows = len(batch["labels"])
        if loss.shape == (rows,):
            return loss
        assert not loss.shape, "the loss of a batch is a number, or one for each of its rows"
        alone = ({name: part[row : row + 1] for name, part in batch.items()} for row in range(rows))
        return torch.stack([self.forward(model, **one).loss.reshape(()) for one in alone])

    def layers_run_whole(self, model: Any) -> int | None:
        """Return how many of the encoder's first layers run as they are; None: all of them."""
        return None

    @abstractmethod
    def fill_batch(self, ids: Tensor, is_mask: Tensor) -> dict[str, Tensor]:
        """Return what `forward` takes to fill the masks of texts [B, S], as many of them in every text."""

    # The cost, of a recipe that is spelled out and whose mask rate stays

    @abstractmethod
    def flops(self, recipe: Recipe, pruned: bool = True) -> Flops:
        """Count the forward pass of one sequence; `pruned`: the last layer works only where something is predicted."""

    def weights(self, recipe: Recipe) -> Weights:
        """Count the weights."""
        encoder, family = recipe.encoder, FAMILIES[recipe.encoder.family]
        assert encoder.vocab_size is not None
        d, e = encoder.width, encoder.embedding_width or encoder.width
        words = encoder.vocab_size * e
        return Weights(
            words=words,
            layers=family.weights(encoder, recipe.max_length),
            decoder=self.added_weights(recipe),
            head=(0 if family.plain_head else linear(d, e) + norm(e) + encoder.vocab_size)
            + (0 if encoder.tied else words),
        )

    def added_weights(self, recipe: Recipe) -> int:
        """Count what `add_weights` adds."""
        return 0

    def matrices(self, recipe: Recipe) -> list[tuple[int, int, int]]:
        """Return the matrices of layers, head and what widens words, fused ones apart: how many, rows, columns."""
        encoder, family = recipe.encoder, FAMILIES[recipe.encoder.family]
        d, e, f = encoder.width, encoder.embedding_width or encoder.width, encoder.ffn_width or 0
        kv = d // encoder.heads * (encoder.key_value_heads or encoder.heads)
        of_layers = [(2, d, d), (2, kv, d), (family.facts.ffn_matrices, d, f)]
        of_words = [(1, d, e)] if e != d else []
        of_head = [] if family.plain_head else [(1, d, e)]
        of_layers = [(n * encoder.layers, rows, columns) for n, rows, columns in of_layers]
        return [*of_words, *of_layers, *of_head, *self.added_matrices(recipe)]

    def added_matrices(self, recipe: Recipe) -> list[tuple[int, int, int]]:
        """The same of what `add_weights` adds."""
        return []

    @abstractmethod
    def kept_numbers(self, recipe: Recipe, scores: bool) -> float:
        """Count what the forward pass of a row keeps for the backward pass; with `scores`, attention's too."""

    # Words

    def words(self, recipe: Recipe) -> list[str]:
        """Return what tells this run's method from another's, beside the mask rate: a word or two each."""
        return []

    @abstractmethod
    def where(self, recipe: Recipe) -> str:
        """Say where the [MASK]s are, for a plan."""

    card = ""
    """How the encoder was trained, for its model card: follows `pre-trained with latemask:`."""
    mask_note = ""
    """What the reader of the card must know of the <mask> token."""


from latemask.objectives import early, exlm, late, mae_lm  # noqa: E402, F401  (they register themselves)
