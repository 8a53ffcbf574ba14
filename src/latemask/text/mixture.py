"""Several prepared corpora as one, by weight. One corpus alone is a mixture of one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latemask.ground.errors import UserError
from latemask.text.prepared import PreparedData
from latemask.text.rows import TokenRows
from latemask.text.tokenizer import Vocabulary
from latemask.text.units import Units, units_of


@dataclass(frozen=True)
class Mixture:
    """Data folders and the share of the samples that each gives."""

    parts: tuple[PreparedData, ...]
    weights: tuple[float, ...]
    """They sum to one, or nearly."""

    @classmethod
    def open(
        cls, given: str | Path | Sequence[str | Path], *, verify: bool = True, everything: bool = False
    ) -> Mixture:
        """Open FOLDER or several FOLDER:WEIGHT; without weights, each counts by its size.

        `verify` and `everything` are those of `PreparedData.open`.
        """
        given = [given] if isinstance(given, (str, Path)) else given
        if not given:
            raise UserError("say which data: --data FOLDER")
        folders, weights = zip(*(_folder_and_weight(str(item)) for item in given), strict=True)
        parts = tuple(PreparedData.open(folder, verify=verify, everything=everything) for folder in folders)
        first, *others = parts
        for other in others:
            if other.vocabulary != first.vocabulary or other.tokenizer.get_vocab() != first.tokenizer.get_vocab():
                raise UserError(
                    f"{other.folder} and {first.folder} were prepared with different tokenizers; prepare one with "
                    f"--tokenizer {first.tokenizer_folder}"
                )
        if None in weights and any(weights):
            raise UserError("give every --data a weight (FOLDER:WEIGHT) or none")
        sizes = [part.tokens("train") for part in parts] if None in weights else weights
        if not sum(sizes):
            raise UserError(f"{', '.join(str(part.folder) for part in parts)}: no tokens to train on")
        return cls(parts, shares(sizes))

    @property
    def arguments(self) -> list[str]:
        """The mixture as it is written on a command line."""
        if len(self.parts) == 1:
            return [str(self.parts[0].folder)]
        return [f"{part.folder}:{weight!r}" for part, weight in zip(self.parts, self.weights, strict=True)]

    @property
    def label(self) -> str:
        """The mixture, for messages."""
        return ", ".join(self.arguments)

    @property
    def vocabulary(self) -> Vocabulary:
        """The ids of the tokenizer, the same in all parts."""
        return self.parts[0].vocabulary

    @property
    def words(self) -> bytes | None:
        """What its pieces say of words."""
        return self.parts[0].words

    @property
    def units(self) -> Units | None:
        """The units that are kept with any of the parts, found in all of them."""
        return units_of(self.parts)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of all parts."""
        return self.parts[0].tokenizer

    @property
    def tokenizer_folder(self) -> Path:
        """Where it is."""
        return self.parts[0].tokenizer_folder

    @property
    def record(self) -> dict[str, Any]:
        """What a run notes of its data, so that it can be told from others when the data is gone."""
        several = {
            f"{number}:{weight!r}:{name}": checksum
            for number, (part, weight) in enumerate(zip(self.parts, self.weights, strict=True))
            for name, checksum in part.fingerprint.items()
        }
        return {
            "folder": self.label,
            "folders": [str(part.folder.resolve()) for part in self.parts],
            "weights": list(self.weights),
            "tokenizer": str(self.tokenizer_folder.resolve()),
            "fingerprint": several if len(self.parts) > 1 else self.parts[0].fingerprint,
            "units": [part.units_checksum for part in self.parts],
            "documents": sum(part.manifest["splits"]["train"]["documents"] for part in self.parts),
            "tokens": self.tokens,
            "vocabulary": self.vocabulary.size,
            "sources": [name for part in self.parts for name in part.sources][:20],
        }

    @property
    def tokens(self) -> int:
        """Tokens to train on."""
        return sum(part.tokens("train") for part in self.parts)

    def rows(self, split: str, length: int) -> tuple[list[TokenRows], list[float]]:
        """Return the rows of each part that has any in `split`, and their weights."""
        pairs = zip((part.rows(split, length) for part in self.parts), self.weights, strict=True)
        present = [(rows, weight) for rows, weight in pairs if len(rows)]
        return [rows for rows, _ in present], [weight for _, weight in present]


def shares(weights: Sequence[float]) -> tuple[float, ...]:
    """Return weights that sum to one, or nearly; such weights come back as they are, so that they can be written."""
    total = sum(weights)
    if math.isclose(total, 1, abs_tol=1e-6):
        return tuple(weights)
    return tuple(round(weight / total, 9) for weight in weights)


def _folder_and_weight(given: str) -> tuple[Path, float | None]:
    """Part `A:0.7`; a folder may have a colon in its name."""
    folder, colon, text = given.rpartition(":")
    if not colon or Path(given).is_dir():
        return Path(given), None
    try:
        weight = float(text)
    except ValueError:
        return Path(given), None
    if not 0 < weight < math.inf:
        raise UserError(f"--data {given}: a weight is a number above 0")
    return Path(folder), weight
