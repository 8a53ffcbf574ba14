"""A model that can say how likely a hidden token is: a run of ours (late or early), or a stock …ForMaskedLM."""

from __future__ import annotations

import hashlib
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM
from transformers import set_seed as set_all_seeds

from latemask.evaluation.encoders import encoder_config, from_hub, load_whole, longest_input, refuse_larger
from latemask.evaluation.identity import encoder_checksum
from latemask.ground.console import printable
from latemask.ground.errors import UserError
from latemask.model.load import is_ours, load_model
from latemask.run_folder import PROGRESS, RunFolder, step_of
from latemask.text.tokenizer import load_tokenizer, tokenizer_digest


class HiddenTokens(ABC):
    """Asks a model for hidden tokens, as it was trained to be asked."""

    def __init__(self, model: Any):
        self.model = model.eval()
        if torch.accelerator.is_available():
            self.model.to(torch.accelerator.current_accelerator())

    @abstractmethod
    def logits(self, ids: Tensor, is_hidden: Tensor) -> Tensor:
        """Return [B, vocabulary] for the first hidden token of texts [B, S], in which as many are hidden in each.

        `ids` has the mask's id where something is hidden.
        """

    @abstractmethod
    def untrained(self) -> HiddenTokens:
        """Return the same architecture with weights that nobody trained."""

    @property
    def architecture(self) -> str:
        """What the untrained one depends on, beside the tokenizer."""
        return str(self.model.config.to_json_string())


class HiddenByObjective(HiddenTokens):
    """A pre-training model: a late one hides late."""

    def logits(self, ids: Tensor, is_hidden: Tensor) -> Tensor:
        logits: Tensor = self.model(**self.model.objective.fill_batch(ids, is_hidden)).logits
        return logits[:, 0]

    def untrained(self) -> HiddenTokens:
        return HiddenByObjective(type(self.model)(self.model.config))


class HiddenAtInput(HiddenTokens):
    """A stock masked language model, with [MASK] at the input. Its head works at the hidden position alone."""

    def __init__(self, model: Any):
        super().__init__(model)
        self.asked = threading.local()  # several threads may ask at once
        self.model.base_model.register_forward_hook(self._keep_asked)

    def logits(self, ids: Tensor, is_hidden: Tensor) -> Tensor:
        place = is_hidden.int().argmax(1)  # the first
        self.asked.place = place
        try:
            logits: Tensor = self.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        finally:
            self.asked.place = None
        # A model whose head does not read its encoder's output as everybody's does gives them all.
        return logits[:, 0] if logits.shape[1] == 1 else logits[torch.arange(len(ids), device=ids.device), place]

    def _keep_asked(self, module: Any, given: Any, output: Any) -> Any:
        """Leave the head nothing but the states at the hidden positions."""
        if (place := getattr(self.asked, "place", None)) is not None:
            states = output.last_hidden_state
            output.last_hidden_state = states[torch.arange(len(states), device=states.device), place][:, None]
        return output

    def untrained(self) -> HiddenTokens:
        return HiddenAtInput(AutoModelForMaskedLM.from_config(self.model.config))


@dataclass(frozen=True)
class LanguageModel:
    """A model by its name, with its tokenizer and what is known of it."""

    name: str
    hidden: HiddenTokens
    tokenizer: Any
    checksum: str
    longest: int
    run: Path | None = None
    step: int | None = None
    """How far its run was, where it was not at its end."""

    @property
    def label(self) -> str:
        """Its name, and the step of a run that is not at its end."""
        return self.name if self.step is None else f"{self.name} (step {self.step:,})"

    def untrained(self) -> LanguageModel:
        """Return the never-trained control: one draw, always the same."""
        parts = self.hidden.architecture + tokenizer_digest(self.tokenizer)
        set_all_seeds(0)
        control = self.hidden.untrained()
        digest = hashlib.sha256(f"untrained {parts}".encode()).hexdigest()
        return LanguageModel(f"never trained ({self.name})", control, self.tokenizer, digest, self.longest)


def open_language_model(given: str) -> LanguageModel:
    """Open a run, a checkpoint, a saved pre-training model, or a stock …ForMaskedLM folder or Hub id."""
    given = given if given == "/" else given.rstrip("/")
    path = Path(given)
    folder = RunFolder(path)
    if path.is_file():
        raise UserError(f"{printable(given)} is a file; give the folder of a run or of a model")
    if path.is_dir() and (folder.recipe_file.is_file() or folder.model.is_dir() or _holds_ours(path)):
        return _ours(given, folder)
    return _stock(given, path if path.is_dir() else from_hub(given))


def _holds_ours(path: Path) -> bool:
    return (path / "config.json").is_file() and is_ours(path)


def _ours(given: str, folder: RunFolder) -> LanguageModel:
    source = folder.newest_model()
    # RUN/model or RUN/checkpoints/checkpoint-100 may be given themselves.
    above = next((RunFolder(up) for up in (source, *source.parents[:2]) if (up / "recipe.yaml").is_file()), folder)
    model = load_model(source)
    tokenizer = load_tokenizer(above.tokenizer_folder(source))
    run = above if above.recipe_file.is_file() else None
    return LanguageModel(
        given,
        HiddenByObjective(model),
        tokenizer,
        encoder_checksum(source),
        model.family.longest(model.config.encoder),
        run.path if run else None,
        step_of(source) if (source / PROGRESS).is_file() else None,
    )


def _stock(given: str, folder: Path) -> LanguageModel:
    config = encoder_config(given, str(folder))
    try:
        model = load_whole(AutoModelForMaskedLM, folder, given, with_head=True)
    except UserError as error:
        if not str((config.architectures or [""])[0]).endswith(("ForMaskedLM", "ForPreTraining")):
            raise UserError(
                f"'{printable(given)}' holds an encoder without the head that predicts words; "
                "give the run, or a …ForMaskedLM folder"
            ) from None
        raise error
    tokenizer = load_tokenizer(folder)
    refuse_larger(given, config, tokenizer)
    if tokenizer.mask_token_id is None:
        raise UserError(f"the tokenizer of '{printable(given)}' has no mask token")
    return LanguageModel(
        given, HiddenAtInput(model), tokenizer, encoder_checksum(folder), longest_input(config, tokenizer)
    )
