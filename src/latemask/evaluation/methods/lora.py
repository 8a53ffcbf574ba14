"""`--method lora` and `dora`: a product of two thin matrices is trained beside every frozen one, by `peft`.

LoRA: Hu et al. 2021; DoRA, which trains the length of every row apart: Liu et al. 2024.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from latemask.evaluation.methods import METHODS, Method, in_body, save_config
from latemask.evaluation.methods.places import is_attention, linears_of
from latemask.ground.console import one_line, printable
from latemask.ground.errors import UserError

if TYPE_CHECKING:
    from latemask.evaluation.encoders import Encoder
    from latemask.evaluation.protocol import Protocol
    from latemask.evaluation.trials import Prepared

_ADAPTER, _CONFIG = "adapter_model.safetensors", "adapter_config.json"  # as peft calls them
_NO_PEFT = "the package peft is missing; install it: pip install peft"
_CARD = """\
It is an adapter for {base}; `peft` puts it on, head included:

```python
from peft import PeftModel
from transformers import {auto_class}

base = {auto_class}.from_pretrained({base!r}, num_labels={count})
model = PeftModel.from_pretrained(base, "path/to/this/folder")
```"""


@dataclass(frozen=True)
class LowRank:
    """Thin matrices beside frozen ones"""

    rank: int = 8
    """Width of the thin matrices."""
    alpha: float = 16.0
    """Their product counts alpha / rank times, so that one learning rate suits all ranks."""
    dropout: float = 0.0
    """Dropout before them, in training."""
    targets: Literal["all", "attention"] = "all"
    """Linear maps of the layers that get them."""
    keep_adapter: bool = False
    """Keep them apart, as a folder for peft; by default they are merged into a stock model."""


@METHODS.register("lora")
class Lora(Method):
    """What others are measured by: it trains little, and costs nothing once it is merged."""

    Options = LowRank
    has_magnitudes = False

    def learning_rate(self, width: int) -> float:
        """Return ten times that of all weights: LoRA's authors took 2e-4 to 5e-4 for RoBERTa base and large."""
        return 10 * super().learning_rate(width)

    def problem(self, encoder: Encoder, protocol: Protocol) -> str | None:
        """Say what is wrong with the options, or cannot be with this encoder."""
        try:
            import_module("peft")
        except ImportError:
            return _NO_PEFT
        given, name = protocol.of_method, protocol.method
        if given.rank < 1:
            return f"--{name}.rank {given.rank}: 1 at least"
        if not 0 < given.alpha < math.inf:
            return f"--{name}.alpha {given.alpha:g}: more than 0"
        if not 0 <= given.dropout < 1:
            return f"--{name}.dropout {given.dropout:g}: 0 at least and below 1"
        return self._misplaced(encoder, given, name) or _without_base(encoder, given, name)

    def _misplaced(self, encoder: Encoder, given: LowRank, name: str) -> str | None:
        targets = targeted(encoder.skeleton(), given)
        if not targets:
            return "its layers have no linear maps that peft can take; take --method full or bias"
        where, least = min(((at, min(one.weight.shape)) for at, one in targets), key=lambda found: found[1])
        if given.rank > least:
            return f"--{name}.rank {given.rank} is more than the {least} of {where}, its smallest matrix; lower it"
        return None

    def prepared(self, model: Any, protocol: Protocol) -> Any:
        """Put the thin matrices on; their product is nothing at first."""
        from peft import LoraConfig, inject_adapter_in_model

        given = protocol.of_method
        config = LoraConfig(
            task_type="TOKEN_CLS" if type(model).__name__.endswith("ForTokenClassification") else "SEQ_CLS",
            r=given.rank,
            lora_alpha=given.alpha,
            lora_dropout=given.dropout,
            use_dora=self.has_magnitudes,
            target_modules=[name for name, _ in targeted(model, given)],
        )
        # Not a PeftModel: the weights keep the names that tell the encoder's from the head's.
        adapted = inject_adapter_in_model(config, model)
        for name, weight in adapted.named_parameters():
            weight.requires_grad_(weight.requires_grad or not in_body(adapted, name))
        return adapted

    def fitted(self, model: Any, prepared: Prepared) -> Any:
        """Note whose adapter it is, too, where it is kept."""
        model = self.prepared(model, prepared.protocol)
        if prepared.protocol.of_method.keep_adapter:
            model.adapted_base = (prepared.encoder.lasting_name, prepared.encoder.checksum)
        return model

    def merged(self, model: Any) -> Any:
        """Add the products to their matrices, and take peft's modules out."""
        from peft.tuners.tuners_utils import BaseTunerLayer

        for name, module in list(model.named_modules()):
            if isinstance(module, BaseTunerLayer):
                module.merge()
                model.set_submodule(name, module.get_base_layer())
        del model.peft_config
        return model

    def save(self, model: Any, folder: Path, protocol: Protocol) -> bool:
        """Write the stock model, or the adapter and the head as peft reads them."""
        if not protocol.of_method.keep_adapter:
            return super().save(model, folder, protocol)
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file

        config = model.peft_config["default"]
        head = {name: value for name, value in model.state_dict().items() if not in_body(model, name)}
        weights = get_peft_model_state_dict(model, save_embedding_layers=False) | head
        weights = {f"base_model.model.{name}": value.cpu().contiguous() for name, value in weights.items()}
        save_file(weights, folder / _ADAPTER, metadata={"format": "pt"})
        config.base_model_name_or_path, model.config.base_checksum = model.adapted_base
        config.inference_mode = True
        config.target_modules = sorted(config.target_modules)  # a set is in another order every time
        config.modules_to_save = head_modules(model)
        config.save_pretrained(str(folder))
        save_config(model, folder)
        return True

    def card(self, model: Any) -> str:
        """Say how peft opens what was kept apart."""
        if not hasattr(model, "adapted_base"):
            return ""
        auto_class = f"AutoModelFor{type(model).__name__.partition('For')[2]}"
        return _CARD.format(base=printable(model.adapted_base[0]), auto_class=auto_class, count=model.config.num_labels)

    def opened(self, folder: Path, auto_class: Any, options: Any) -> Any:
        """Put an adapter that was kept on its encoder, which must still be the one that it was trained on."""
        if not (folder / _CONFIG).is_file():
            return None
        try:
            from peft import PeftModel
        except ImportError:
            raise UserError(f"{printable(str(folder))} is an adapter, and {_NO_PEFT}") from None
        from transformers import AutoConfig

        from latemask.evaluation.encoders import load_whole

        if not (folder / _ADAPTER).is_file():  # peft would look for a pickle then, and ask the Hub
            raise UserError(f"{printable(str(folder / _ADAPTER))} is missing; fine-tune again")
        try:
            config = AutoConfig.from_pretrained(folder)
            base = _base_of(folder, config.base_checksum)
            assert base.folder is not None
            model = load_whole(auto_class, base.folder, base.name, config=config)
            return PeftModel.from_pretrained(model, str(folder)).eval()
        except UserError:
            raise
        except Exception as error:  # peft, safetensors and json raise many kinds for a damaged file
            reason = one_line(error, 120)
            raise UserError(f"the adapter in {printable(str(folder))} is damaged ({reason}); fine-tune again") from None


@METHODS.register("dora")
class Dora(Lora):
    """LoRA for the directions of a matrix's rows, and their lengths apart."""

    has_magnitudes = True


def targeted(model: Any, given: LowRank) -> list[tuple[str, Any]]:
    """Return the linear maps that get thin matrices, by name."""
    return [(name, one) for name, one in linears_of(model) if given.targets == "all" or is_attention(name)]


def head_modules(model: Any) -> list[str]:
    """Return the topmost modules that belong to the task's head as a whole, by name."""
    names = [name for name, _ in model.named_parameters() if not in_body(model, name)]
    tops = {name.partition(".")[0] for name in names} - {model.base_model_prefix}
    poolers = {name[: name.index("pooler")] + "pooler" for name in names if name.startswith(model.base_model_prefix)}
    return sorted(tops | poolers)


def _without_base(encoder: Encoder, given: LowRank, name: str) -> str | None:
    """Say why there would be nothing to put a kept adapter on."""
    if not given.keep_adapter or encoder.lasting_name is not None:
        return None
    if encoder.is_random:
        return f"an adapter needs its encoder, and nobody keeps one that was never trained; drop --{name}.keep-adapter"
    return (
        f"an adapter needs its encoder, and this one is exported for this command alone: "
        f"run latemask export on it and give that folder, or drop --{name}.keep-adapter"
    )


def _base_of(folder: Path, checksum: str) -> Encoder:
    """Open the encoder that an adapter was trained on."""
    from latemask.evaluation.encoders import open_encoders

    name = json.loads((folder / _CONFIG).read_text("utf-8"))["base_model_name_or_path"]
    shown = f"{printable(str(folder))} is an adapter for {printable(name)}"
    if Path(name).is_absolute() and not Path(name).is_dir():
        raise UserError(f"{shown}, which is gone; write where it is now into {_CONFIG}, base_model_name_or_path")
    base = open_encoders([name])[0]
    if base.checksum != checksum:
        raise UserError(f"{shown}, and what is there now is another encoder; put the first one back")
    return base
