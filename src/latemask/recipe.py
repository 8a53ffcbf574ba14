"""What a run is: frozen dataclasses, YAML in and out. A default lives here and nowhere else."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import yaml

from latemask.ground.errors import UserError, nearest
from latemask.ground.files import read_yaml

MOST_STEPS = 10**9
_MOST = {"layers": 10_000, "width": 2**20, "heads": 2**20}
_LONGEST_ROW = 2**24
RECIPE_FOLDER = Path(__file__).parent / "recipes"
MLM_RATE = 0.15  # of BERT and RoBERTa: what we are compared with, and how every run is validated
Precision = Literal["auto", "fp32", "bf16", "fp16"]


@dataclass(frozen=True)
class EncoderRecipe:
    """The encoder: what you keep."""

    family: Literal["modernbert", "roberta", "roberta-prelayernorm", "bert"] = "modernbert"
    """Architecture, a stock Hugging Face model; modernbert (pre-norm, rotary) learns fastest on little compute."""
    init: str | None = None
    """Folder or Hub id of an encoder to go on from; its shape then replaces the one given here."""
    layers: int = 12
    """Number of layers."""
    width: int = 256
    """Hidden size."""
    heads: int = 4
    """Attention heads; must divide the width."""
    ffn_width: int | None = None
    """Feed-forward width; by default what makes a layer cost as much as 4 x width does without a gate."""
    init_std: float = 0.02
    """Standard deviation of the first weights; 0.02 suits widths near 768, narrow encoders start faster with more."""
    rotary_base: float = 10_000.0
    """Base of the rotary positions (modernbert): smaller tells near positions apart better, larger reaches further."""
    dropout: float = 0.0
    """Dropout while pre-training; also written into the exported config."""
    max_length: int | None = None
    """Longest input the encoder will take, in tokens; by default the row length."""
    vocab_size: int | None = None
    """Rows of the word table; by default the size of the data's tokenizer, larger leaves rows unused."""


@dataclass(frozen=True)
class MaskRecipe:
    """Which positions are hidden and predicted, as shares of a row."""

    rate: float = 0.4
    """Share of a row that is predicted."""
    rate_end: float | None = None
    """Share at the end of the run: from `rate` it goes there in a straight line; by default it stays."""
    random: float = 0.0
    """Of the predicted positions, the share that stays visible as a random token (BERT: 0.1)."""
    keep: float = 0.0
    """Of the predicted positions, the share that stays visible unchanged (BERT: 0.1)."""
    drop: float = 0.0
    """Share of a row that is hidden from the encoder and predicted by nobody."""


@dataclass(frozen=True)
class JoinRecipe:
    """Where the [MASK]s join (late masking only)."""

    kind: Literal["inside", "self", "cross", "cross-only"] = "inside"
    """In the encoder's own last layers, or in a separate decoder that is thrown away."""
    layers: int = 2
    """How many layers see the [MASK]s."""
    two_way: bool = False
    """Let visible positions attend to [MASK]s, too (inside only)."""
    positions: Literal["relative", "absolute"] = "relative"
    """How a separate decoder knows positions: a learned bias over the distance, or its own table as in the paper."""


@dataclass(frozen=True)
class TrainRecipe:
    """How the run is optimised and watched."""

    batch_size: int = 256
    """Rows a step, over all devices and accumulation."""
    micro_batch_size: int | None = None
    """Rows a device takes at once; the rest is accumulated. By default no accumulation."""
    learning_rate: float = 1e-3
    """Peak learning rate."""
    warmup: float = 0.06
    """Share of the steps in which the learning rate rises; then it falls linearly to 0."""
    weight_decay: float = 0.01
    """AdamW weight decay, not on biases and norms."""
    beta1: float = 0.9
    """AdamW beta 1."""
    beta2: float = 0.98
    """AdamW beta 2."""
    epsilon: float = 1e-6
    """AdamW epsilon."""
    clip: float = 1.0
    """Largest gradient norm; 0 turns clipping off."""
    precision: Precision = "auto"
    """Mixed precision; auto takes bf16 on a GPU or CPU that has it and fp32 elsewhere."""
    sharded: bool = False
    """Split weights and optimizer over the processes (FSDP), for models that one device cannot hold."""
    workers: int = 0
    """Processes that load and mask rows; 0 does it in the training process."""
    log_every: int = 50
    """Steps between log lines."""
    eval_every: int = 500
    """Steps between validations (15 % of a row masked, whatever mask.rate is); it is also done at the end."""
    eval_rows: int = 512
    """Validation rows used each time (fewer if there are fewer)."""
    save_every: int = 500
    """Steps between checkpoints."""
    keep_checkpoints: int = 2
    """How many checkpoints are kept."""


@dataclass(frozen=True)
class BudgetRecipe:
    """What the run may spend: exactly one of these."""

    steps: int | None = None
    """Optimizer steps."""
    tokens: float | None = None
    """Tokens of text, hidden ones included."""
    flops: float | None = None
    """Floating-point operations, forward and backward."""


@dataclass(frozen=True)
class Recipe:
    """All of a run."""

    objective: Literal["late", "early"] = "late"
    """Late masking, or the MLM baseline with [MASK] at the input."""
    length: int = 128
    """Row length in tokens."""
    seed: int = 0
    """Fixes weights, order and masks."""
    encoder: EncoderRecipe = field(default_factory=EncoderRecipe)
    """Encoder"""
    mask: MaskRecipe = field(default_factory=MaskRecipe)
    """Mask"""
    join: JoinRecipe = field(default_factory=JoinRecipe)
    """Join (late masking only)"""
    train: TrainRecipe = field(default_factory=TrainRecipe)
    """Training"""
    budget: BudgetRecipe = field(default_factory=BudgetRecipe)
    """Budget"""

    @property
    def counts(self) -> MaskCounts:
        """How many positions of a row are what; the same in every row. (Of a rate that changes: at the start.)"""
        return MaskCounts.of(self.mask, self.length)

    def at(self, progress: float) -> Recipe:
        """Return the recipe as it is at a point of the run, from 0 to 1: with a rate that stays."""
        mask = self.mask
        if mask.rate_end is None:
            return self
        return replace(self, mask=replace(mask, rate=mask.rate + progress * (mask.rate_end - mask.rate), rate_end=None))

    @property
    def as_validated(self) -> Recipe:
        """The recipe with the masks of a validation, the same for every run: so the losses of all can be compared."""
        return replace(self, mask=MaskRecipe(rate=MLM_RATE))

    @property
    def max_length(self) -> int:
        """Longest input the encoder will take."""
        return self.encoder.max_length or self.length


@dataclass(frozen=True)
class MaskCounts:
    """Positions of a row by their part in it. Exact in every row, so that all shapes are static."""

    length: int
    predicted: int
    random: int
    kept: int
    dropped: int

    @classmethod
    def of(cls, mask: MaskRecipe, length: int) -> MaskCounts:
        """Turn shares into counts."""
        predicted = round(mask.rate * length)
        return cls(
            length=length,
            predicted=predicted,
            random=round(mask.random * predicted),
            kept=min(round(mask.keep * predicted), predicted - round(mask.random * predicted)),
            dropped=round(mask.drop * length),
        )

    @property
    def corrupted(self) -> int:
        """Predicted positions that stay visible, replaced or unchanged."""
        return self.random + self.kept

    @property
    def masked(self) -> int:
        """Predicted positions that are hidden."""
        return self.predicted - self.corrupted

    @property
    def visible(self) -> int:
        """Positions the encoder sees."""
        return self.length - self.masked - self.dropped


def bundled_recipes() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(path.stem for path in RECIPE_FOLDER.glob("*.yaml"))


def find_recipe(name_or_path: str | Path) -> Path:
    """Return the file of a recipe given by path or by the name of one that comes with the package."""
    path = Path(name_or_path)
    if path.is_file():
        return path
    bundled = RECIPE_FOLDER / f"{name_or_path}.yaml"
    if bundled.is_file():
        return bundled
    if path.is_dir():
        raise UserError(f"{path} is a folder, not a recipe file")
    raise UserError(f"no recipe at '{name_or_path}'{nearest(path.stem, bundled_recipes())}")


def load_recipe(name_or_path: str | Path, overrides: dict[str, Any] | None = None) -> Recipe:
    """Read a recipe and lay nested `overrides` ({"mask": {"rate": 0.5}}) over it; refuse what it cannot be."""
    path = find_recipe(name_or_path)
    tree = read_yaml(path, "recipe") or {}
    _refuse_unknown(tree, Recipe, str(path))
    _refuse_unknown(overrides or {}, Recipe, "overrides")
    if overrides and "budget" in overrides:
        tree["budget"] = {}  # one budget replaces another
    recipe = _instantiate(_merged(tree, overrides or {}), str(path))
    check_recipe(recipe)
    return recipe


def dump_recipe(recipe: Recipe) -> str:
    """Write a recipe as YAML, every key spelled out."""
    return yaml.safe_dump(asdict(recipe), sort_keys=False)


def batch_split(train: TrainRecipe, world_size: int) -> tuple[int, int]:
    """Return rows on a device at once, and how many times they are accumulated."""
    share, left = divmod(train.batch_size, world_size)
    if not share:
        raise UserError(f"train.batch_size {train.batch_size} is less than one row for each of {world_size} processes")
    on_device = train.micro_batch_size or share
    if left or share % on_device:
        raise UserError(
            f"train.batch_size {train.batch_size} does not split into {world_size} process(es) x "
            f"train.micro_batch_size {on_device}; change one of them"
        )
    return on_device, share // on_device


def spelled_out(recipe: Recipe, vocab_size: int) -> Recipe:
    """Return the recipe with every size that follows from others written down; the vocabulary's where none is given."""
    encoder = recipe.encoder
    return replace(
        recipe,
        encoder=replace(
            encoder,
            ffn_width=encoder.ffn_width or _default_ffn_width(encoder),
            max_length=recipe.max_length,
            vocab_size=encoder.vocab_size or vocab_size,
        ),
    )


def _default_ffn_width(encoder: EncoderRecipe) -> int:
    """4 x width; a gated feed-forward has three matrices instead of two, so 8/3 x width costs the same."""
    return max(round(8 / 3 * encoder.width / 32), 1) * 32 if encoder.family == "modernbert" else 4 * encoder.width


def flat(recipe: Recipe) -> dict[str, Any]:
    """Return every key of a recipe with its value, as `mask.rate`: 0.4."""
    return _flat(asdict(recipe))


def differences(old: Recipe, new: Recipe) -> list[str]:
    """Say which keys of two recipes differ, as `mask.rate: 0.4 -> 0.5`."""
    before, after = flat(old), flat(new)
    return [f"{key}: {before[key]} -> {after[key]}" for key in before if before[key] != after[key]]


def check_recipe(recipe: Recipe) -> None:
    """Refuse a recipe that cannot run, with the key and what to do."""
    for problem in (_shape_problem, _mask_problem, _train_problem, _budget_problem):
        if message := problem(recipe):
            raise UserError(f"recipe: {message}")


def _shape_problem(recipe: Recipe) -> str | None:
    encoder, join = recipe.encoder, recipe.join
    for key, most in _MOST.items():
        if not 1 <= getattr(encoder, key) <= most:
            return f"encoder.{key} is {getattr(encoder, key)}; it must be between 1 and {most:,}"
    if encoder.width % encoder.heads:
        return f"encoder.heads {encoder.heads} does not divide encoder.width {encoder.width}"
    if encoder.family == "modernbert" and (encoder.width // encoder.heads) % 2:
        return f"encoder.width / encoder.heads is {encoder.width // encoder.heads}; rotary positions need it even"
    for key in ("ffn_width", "max_length", "vocab_size"):
        if (value := getattr(encoder, key)) is not None and not 1 <= value <= 2**31:
            return f"encoder.{key} is {value}; it must be between 1 and {2**31:,}"
    if not 0 < encoder.init_std <= 1:
        return f"encoder.init_std is {encoder.init_std}; it must be between 0 and 1"
    if not 1 < encoder.rotary_base <= 1e9:
        return f"encoder.rotary_base is {encoder.rotary_base}; it must be more than 1, and 1e9 at most"
    if not 0 <= encoder.dropout < 1:
        return f"encoder.dropout is {encoder.dropout}; it must be in [0, 1)"
    if not 4 <= recipe.length <= _LONGEST_ROW:
        return f"length is {recipe.length}; a row has between 4 and {_LONGEST_ROW:,} tokens"
    if recipe.max_length < recipe.length:
        return f"encoder.max_length {encoder.max_length} is shorter than length {recipe.length}"
    if not 0 <= recipe.seed < 2**32:
        return f"seed is {recipe.seed}; it must be in [0, 2**32)"
    if join.layers < 1:
        return f"join.layers is {join.layers}; at least one layer must see the [MASK]s"
    known = encoder.init is None or encoder.ffn_width is not None  # else the layers will be the checkpoint's
    if recipe.objective == "late" and join.kind == "inside" and known and join.layers > encoder.layers:
        return f"join.layers {join.layers} is more than encoder.layers {encoder.layers}; inside needs that many"
    if join.two_way and join.kind != "inside":
        return f"join.two_way is for join.kind inside; a '{join.kind}' decoder has its own layers"
    return None


def _mask_problem(recipe: Recipe) -> str | None:
    mask = recipe.mask
    for key in ("rate", "rate_end"):
        if (rate := getattr(mask, key)) is not None and not 0 < rate < 1:
            return f"mask.{key} is {rate}; it must be between 0 and 1"
    for key in ("random", "keep", "drop"):
        if not 0 <= getattr(mask, key) < 1:
            return f"mask.{key} is {getattr(mask, key)}; it must be in [0, 1)"
    if mask.random + mask.keep > 1:
        return f"mask.random {mask.random} + mask.keep {mask.keep} is more than 1"
    return _count_problem(recipe.at(0)) or _count_problem(recipe.at(1))


def _count_problem(recipe: Recipe) -> str | None:
    mask, counts = recipe.mask, recipe.counts
    if counts.predicted < 1:
        return f"mask.rate {mask.rate} predicts nothing in a row of {recipe.length}; raise mask.rate or length"
    # <s> stays visible always; an encoder that sees only <s> has nothing to read.
    if counts.predicted + counts.dropped > recipe.length - 2:
        return (
            f"mask.rate {mask.rate} + mask.drop {mask.drop} leaves nothing visible in a row of {recipe.length}; "
            "lower one of them"
        )
    if recipe.objective == "late" and counts.masked < 1:
        return "mask.random + mask.keep leave no position masked; late masking needs some"
    return None


def _train_problem(recipe: Recipe) -> str | None:
    train = recipe.train
    for key in ("batch_size", "log_every", "eval_every", "eval_rows", "save_every", "keep_checkpoints"):
        if not 1 <= getattr(train, key) <= 2**31:
            return f"train.{key} is {getattr(train, key)}; it must be between 1 and {2**31:,}"
    if train.micro_batch_size is not None and train.micro_batch_size < 1:
        return f"train.micro_batch_size is {train.micro_batch_size}; it must be at least 1"
    if not 0 < train.learning_rate < math.inf:
        return f"train.learning_rate is {train.learning_rate}; it must be positive"
    if not 0 <= train.warmup <= 1:
        return f"train.warmup is {train.warmup}; it is a share of the steps, in [0, 1]"
    for key in ("beta1", "beta2"):
        if not 0 <= getattr(train, key) < 1:
            return f"train.{key} is {getattr(train, key)}; it must be in [0, 1)"
    for key in ("weight_decay", "epsilon", "clip", "workers"):
        if not 0 <= getattr(train, key) < math.inf:
            return f"train.{key} is {getattr(train, key)}; it must be a number, 0 or more"
    return None


def _budget_problem(recipe: Recipe) -> str | None:
    given = {key: value for key, value in asdict(recipe.budget).items() if value is not None}
    if len(given) > 1:
        return f"budget has {' and '.join(given)}; give one of them"
    for key, value in given.items():
        if not 0 < value < math.inf:
            return f"budget.{key} is {value}; it must be positive"
    if recipe.budget.steps is not None and recipe.budget.steps > MOST_STEPS:
        return f"budget.steps is {recipe.budget.steps}; {MOST_STEPS:,} at most"
    return None


def _refuse_unknown(tree: Any, section: type, where: str, prefix: str = "") -> None:
    if not isinstance(tree, dict):
        raise UserError(f"{where}: '{prefix.rstrip('.') or 'a recipe'}' must be a mapping of keys, not {tree!r}")
    types = get_type_hints(section)
    valid = [f"{prefix}{f.name}" for f in fields(section)]
    for key, value in tree.items():
        if key not in types:
            raise UserError(f"{where}: unknown key '{prefix}{key}'{nearest(f'{prefix}{key}', valid)}")
        if is_dataclass(types[key]) and isinstance(types[key], type):
            _refuse_unknown(value, types[key], where, f"{prefix}{key}.")
        elif value is None and type(None) not in get_args(types[key]):
            raise UserError(f"{where}: {prefix}{key} must not be null; leave the key out for its default")


def _instantiate(tree: dict[str, Any], where: str) -> Recipe:
    parser = _recipe_parser()
    try:
        built = parser.instantiate(parser.parse_object(tree))
    except Exception as error:  # jsonargparse raises its own kinds for a value of a wrong type
        raise UserError(f"{where}: {plain_type_error(str(error))}") from None
    return Recipe(**built.as_dict())


@cache
def _recipe_parser() -> Any:
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Recipe, None)
    return parser


def plain_type_error(message: str) -> str:
    """Say jsonargparse's `Parser key "a.b": Expected a <class 'int'>. Got value: x` in plain words."""
    flat = " ".join(message.split())
    found = re.search(r'Parser key "([\w.]+)":.*?Subtypes: \[(.*?)\] Errors:.*Given value: ?(.*)$', flat)
    found = found or re.search(r'Parser key "([\w.]+)":.*?Expected an? (.+?)\. Got value: ?(.*)$', flat)
    if section := re.search(r'Parser key "([\w.]+)": Unable to load config', flat):
        return f"{section[1]} is a part of a recipe; give one of its keys (--{section[1]}.KEY VALUE)"
    if not found:
        return flat
    key, expected, value = found.groups()
    expected = re.sub(r"<class '([\w.]+)'>", r"\1", expected).replace("typing.", "")
    expected = re.sub(r"Literal\[(.*)\]", r"one of \1", expected).replace(", NoneType", " or null")
    return f"{key} must be {expected}, not {_short(value)!r}"


def _short(text: str, most: int = 80) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in over.items():
        out[key] = _merged(out.get(key) or {}, value) if isinstance(value, dict) else value
    return out


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in tree.items():
        out.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return out
