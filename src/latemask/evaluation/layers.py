"""A frozen encoder's states, layer by layer: layer 0 is what enters the first one.

N texts, B batch, S positions, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from latemask.evaluation.features import Feature, batches_by_length, evaluating, featurize, make_collator
from latemask.evaluation.tasks import Examples
from latemask.ground.console import printable
from latemask.ground.errors import UserError
from latemask.recipe import FAMILIES

_MOST_TOKENS = 128
_AVERAGED = 4


def tokenized(encoder: Any, texts: list[str]) -> list[Feature]:
    """Return what an `encoders.Encoder` takes of each text."""
    length = min(encoder.longest, _MOST_TOKENS)
    examples = Examples("the probes' text", texts, None, [0] * len(texts))
    return featurize(examples, "classification", encoder.tokenizer, length).rows


def layer_states(model: Any, encoder: Any, rows: list[Feature]) -> Iterator[tuple[list[int], Any, list[Any]]]:
    """Yield (rows of a batch, attention mask [B, S], states of layers 0 to the last [B, S, D]), by one forward pass.

    Each layer's states are what an encoder that ends there would return: behind the final norm, where it has one.
    """
    collator = make_collator("classification", encoder.tokenizer)
    with evaluating(model):
        for batch in batches_by_length(rows):
            inputs = collator([rows[row] for row in batch])
            inputs.pop("labels")
            inputs = {name: value.to(model.device) for name, value in inputs.items()}
            *below, last = model(**inputs, output_hidden_states=True).hidden_states
            if model.config.model_type in FAMILIES.names():
                family = FAMILIES[model.config.model_type]
                below = [family.final_norm(model, states) for states in below]
            if not last.isfinite().all():
                raise UserError(
                    f"the encoder '{printable(encoder.name)}' gives no numbers (NaN): its training diverged"
                )
            yield batch, inputs["attention_mask"], [*below, last]


def pooled(model: Any, encoder: Any, texts: list[str], every_layer: bool = False) -> dict[str, np.ndarray]:
    """Return a vector for each text [N, 2 D], by layer: the mean of its tokens' states, and the first one's state.

    The last layer alone or, with `every_layer`, all of them from below, and the mean of the last four.
    """
    import torch  # not for --help

    rows = tokenized(encoder, texts)
    found: dict[str, np.ndarray] = {}
    for batch, attended, layers in layer_states(model, encoder, rows):
        named = {str(number): states for number, states in enumerate(layers)}
        kept = {**named, **_mean_of_last(layers)} if every_layer else dict([named.popitem()])
        mask = attended[..., None]
        for name, states in kept.items():
            mean = (states * mask).sum(1) / mask.sum(1)
            vectors = found.setdefault(name, np.empty((len(rows), 2 * states.shape[-1]), np.float32))
            vectors[batch] = torch.cat([mean, states[:, 0]], 1).float().cpu().numpy()
    return found


def _mean_of_last(layers: list[Any]) -> dict[str, Any]:
    averaged = layers[1:][-_AVERAGED:]
    return {f"mean of the last {len(averaged)}": sum(averaged) / len(averaged)} if len(averaged) > 1 else {}
