"""What the late and the early model share: an opened stock encoder and the head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedModel
from transformers import initialization as init  # leaves weights alone that were loaded
from transformers.utils import ModelOutput

from latemask.ground.errors import UserError
from latemask.model.decoder import RelativeBias
from latemask.model.families import family_of
from latemask.model.head import PredictionHead


@dataclass
class PreTrainingOutput(ModelOutput):
    """`loss` where labels were given, `logits` [B, P, vocabulary] at predicted positions where they were not."""

    loss: Tensor | None = None
    logits: Tensor | None = None


class EncoderForPreTraining(PreTrainedModel):
    """An encoder, opened by its family, with a vocabulary head."""

    base_model_prefix = "encoder"
    main_input_name = "labels"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True

    def __init__(self, config: Any):
        super().__init__(config)
        self.family = family_of(config.encoder)
        self.encoder = build_encoder(config.encoder)
        self.head = PredictionHead(config.encoder.hidden_size, config.encoder.vocab_size)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, RelativeBias):
            init.copy_(module.weight, module.start())
        if isinstance(module, PredictionHead):
            init.zeros_(module.bias)

    @classmethod
    def from_encoder(cls, folder_or_id: str, **settings: Any) -> EncoderForPreTraining:
        """Start from an existing encoder (continued pre-training); the rest is new."""
        encoder = load_encoder(folder_or_id)
        model = cls(cls.config_class(encoder=encoder.config, **settings))
        model.encoder = encoder
        return model

    @property
    def words(self) -> Tensor:
        """The word table [vocabulary, D]."""
        return self.encoder.get_input_embeddings().weight

    def encode(self, ids: Tensor, positions: Tensor, layers: int | None = None) -> Tensor:
        """Run the encoder, or its first `layers`, on tokens at their original positions: [B, S, D].

        After all layers this is the stock model's last hidden state.
        """
        states = self.family.embed(self.encoder, positions, ids=ids)
        rotation = self.family.rotation(self.encoder, states, positions)
        for layer in list(self.family.layers(self.encoder))[:layers]:
            states = self.family.run(layer, states, rotation)
        return states if layers is not None else self.family.final_norm(self.encoder, states)

    def predict(self, states: Tensor, labels: Tensor | None) -> PreTrainingOutput:
        """Compare with the labels, or show the logits."""
        if labels is None:
            return PreTrainingOutput(logits=self.head.logits(states, self.words))
        return PreTrainingOutput(loss=self.head.loss(states, self.words, labels))


def build_encoder(config: Any) -> Any:
    """Build an encoder from its config, without the pooler that pre-training would not train."""
    if config.model_type == "modernbert":  # has none
        return AutoModel.from_config(config)
    return AutoModel.from_config(config, add_pooling_layer=False)


def stock_config(folder_or_id: str) -> Any:
    """Read the config of an existing encoder; no code of strangers is run."""
    return _named(folder_or_id, lambda: AutoConfig.from_pretrained(folder_or_id, trust_remote_code=False))


def load_encoder(folder_or_id: str) -> Any:
    """Load an encoder from safetensors in a folder or on the Hub; no code of strangers is run."""
    config = stock_config(folder_or_id)
    family_of(config)
    without_pooler = {} if config.model_type == "modernbert" else {"add_pooling_layer": False}
    settings = {"trust_remote_code": False, "use_safetensors": True, "dtype": torch.float32, **without_pooler}
    return _named(folder_or_id, lambda: AutoModel.from_pretrained(folder_or_id, **settings))


def _named(folder_or_id: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:  # transformers and safetensors raise many kinds for "not there" and "damaged"
        raise UserError(_no_encoder(Path(folder_or_id), str(error))) from None


def _no_encoder(path: Path, reason: str) -> str:
    if (path / "encoder" / "config.json").is_file():
        return f"no encoder at '{path}' (did you mean '{path / 'encoder'}'?)"
    if not path.is_dir():
        return f"no encoder at '{path}': not a folder here, and not reachable on the Hub"
    return f"the encoder in '{path}' cannot be read: {' '.join(reason.split())[:200]}"
