"""The texts on which a quantised encoder is fitted: the task's own or a file's, with special tokens, in batches."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latemask.ground.console import printable
from latemask.ground.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from latemask.evaluation.trials import Prepared

_BATCH = 8  # texts of a step


@dataclass(frozen=True)
class Texts:
    """A batch of texts, as an encoder takes it."""

    inputs: dict[str, Tensor]

    def __len__(self) -> int:
        return len(self.inputs["input_ids"])

    def to(self, device: Any) -> Texts:
        """Return the same on a device."""
        return Texts({name: value.to(device) for name, value in self.inputs.items()})

    def seen(self, value: Any) -> Tensor:
        """Return the vectors [tokens, …] of what is no padding; of a layer's tuple those of its first."""
        value = value[0] if isinstance(value, tuple) else value
        mask = self.inputs["attention_mask"].bool()
        found: Tensor = value[mask] if value.shape[:2] == mask.shape else value.flatten(0, -2)
        return found


def batches_of(prepared: Prepared, file: str | None, count: int) -> list[Texts]:
    """Return texts of a file, or else so many of the task's training texts; those of one batch are about as long."""
    from latemask.evaluation.features import featurize
    from latemask.evaluation.tasks import Examples

    tokenizer, rows = prepared.encoder.tokenizer, prepared.splits["train"].rows
    if file is not None:
        texts = texts_in(Path(file), count)
        rows = featurize(
            Examples(file, texts, None, [0] * count), "classification", tokenizer, prepared.max_length
        ).rows
    rows = random.Random(0).sample(rows, min(count, len(rows)))
    bare = [{name: value for name, value in row.items() if name != "labels"} for row in rows]
    bare.sort(key=lambda row: len(row["input_ids"]))
    parts = [bare[start : start + _BATCH] for start in range(0, len(bare), _BATCH)]
    return [Texts(dict(tokenizer.pad(part, return_tensors="pt", return_attention_mask=True))) for part in parts]


def texts_in(path: Path, count: int) -> list[str]:
    """Return so many texts of a file, drawn at random, or say why there are none."""
    name, draw = f"--apiq.calibration {printable(str(path))}", random.Random(0)
    try:
        with path.open(encoding="utf-8") as file:
            lines = (line.strip() for line in file)
            texts = heapq.nsmallest(count, filter(None, lines), key=lambda _: draw.random())
    except UnicodeDecodeError:
        raise UserError(f"{name} is no UTF-8 text: give a file with one text a line") from None
    except OSError as error:
        raise UserError(f"{name} cannot be read ({error.strerror}): give a file with one text a line") from None
    if len(texts) < count:
        remedy = f"give more, or --apiq.samples {len(texts)}" if texts else "give a file with one text a line"
        raise UserError(f"{name} has {len(texts)} texts, not {count}: {remedy}")
    return texts
