"""`latemask fill`: what a pre-training model puts in the place of each mask."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from latemask.ground.console import json_line, printable
from latemask.ground.errors import UserError
from latemask.run_folder import RunFolder
from latemask.text.tokenizer import load_tokenizer, vocabulary_of


@dataclass(frozen=True)
class Prediction:
    """One token the model would put there."""

    token: str
    probability: float


def fill(run: Path, text: str, *, top: int = 5, json: bool = False) -> list[list[Prediction]]:
    """Show the model's top predictions for each mask in a text.

    Args:
        run: Run folder or saved pre-training model.
        text: Text with one <mask> or more.
        top: How many predictions for each mask.
        json: Print JSON instead of a table.
    """
    found = Filler(Path(run)).predict(text, top)
    if json:
        print(json_line([[asdict(p) for p in predictions] for predictions in found]))
        return found
    for number, predictions in enumerate(found, 1):
        table = Table("token", title=f"mask {number}" if len(found) > 1 else None)
        table.add_column("probability", justify="right")
        for prediction in predictions:
            table.add_row(Text(printable(prediction.token) or "(space)"), f"{prediction.probability:.1%}")
        Console(highlight=False).print(table)
    return found


class Filler:
    """A model and its tokenizer, loaded once."""

    def __init__(self, run: Path):
        from latemask.model import load_model  # not for --help: it loads torch

        folder = RunFolder(run)
        source = folder.newest_model()
        self.model = load_model(source)
        self.tokenizer = load_tokenizer(folder.tokenizer_folder(source))
        vocabulary_of(self.tokenizer)

    def predict(self, text: str, top: int = 5) -> list[list[Prediction]]:
        """Return the `top` predictions for each mask of `text`, in its order."""
        import torch

        ids = self._ids(text)[None]
        if top < 1:
            raise UserError(f"--top {top} shows nothing; it must be at least 1")
        batch = self.model.objective.fill_batch(ids, ids == self.tokenizer.mask_token_id)
        with torch.inference_mode():
            shares = self.model(**batch).logits[0].softmax(-1)[:, : len(self.tokenizer)]  # the table may have more rows
        best = shares.topk(min(top, shares.shape[-1]))
        return [
            [Prediction(self.tokenizer.decode([token]).strip(), round(p, 4)) for token, p in zip(*row, strict=True)]
            for row in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def _ids(self, text: str) -> Any:
        mask = self.tokenizer.mask_token
        if text != text.encode("utf-8", "ignore").decode("utf-8"):  # bytes of the command line that are no text
            raise UserError("the text is not valid UTF-8")
        ids = self.tokenizer(text.replace("<mask>", mask), return_tensors="pt", truncation=False).input_ids[0]
        if not (ids == self.tokenizer.mask_token_id).any():
            raise UserError(f"nothing to fill: the text has no {mask}")
        longest = self.model.family.longest(self.model.config.encoder)
        if len(ids) > longest:
            raise UserError(f"the text has {len(ids)} tokens, the encoder takes {longest} at most")
        return ids
