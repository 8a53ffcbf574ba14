"""What tells one encoder from another. Light: reports read it without loading a model."""

from __future__ import annotations

import hashlib
from pathlib import Path

from latemask.ground.console import printable
from latemask.ground.errors import UserError
from latemask.ground.files import sha256_of

RANDOM = "random:"  # before a recipe's or an encoder's name: its shape, never trained
_WEIGHTS = "*.safetensors"


def encoder_checksum(folder: Path) -> str:
    """Return one checksum for config, weights and tokenizer."""
    weights = sorted(folder.glob(_WEIGHTS))
    if not weights:
        raise UserError(f"{printable(str(folder))}: no safetensors in it; latemask opens no pickled weights")
    files = [folder / "config.json", *weights, folder / "tokenizer.json"]
    digests = [sha256_of(file.resolve()) for file in files if file.is_file()]
    return hashlib.sha256("".join(digests).encode()).hexdigest()
