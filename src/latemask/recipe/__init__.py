"""What a run is: frozen dataclasses here, their files and what they cannot be beside. A default lives nowhere else.

The names that a recipe may use stand in seven tables, filled by the rooms that own the things: an objective brings a
section of its own with it (`recipe.options`; late masking's is called `join`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from latemask.ground.errors import UserError
from latemask.ground.registry import Registry
from latemask.recipe.select import SelectRecipe as SelectRecipe

OBJECTIVES: Registry[Any] = Registry("objective", home="latemask.objectives")
FAMILIES: Registry[Any] = Registry("encoder family", home="latemask.families")
PATTERNS: Registry[Any] = Registry("masking pattern", home="latemask.masking.patterns")
OPTIMIZERS: Registry[Any] = Registry("optimizer", home="latemask.training.optimizers")
SCHEDULES: Registry[Any] = Registry("schedule", home="latemask.training.schedules")
TRACKERS: Registry[Any] = Registry("tracker", home="latemask.training.trackers")
STARTS: Registry[Any] = Registry("start", home="latemask.starts")

MOST_STEPS = 10**9
_ROTARY_BASE = 10_000.0
_NEW_RATE = 1e-3
_CONTINUING_RATE = 1e-4  # at the width of a base model
MLM_RATE = 0.15  # of BERT and RoBERTa: what we are compared with, and how every run is validated
RateSchedule = Literal["linear", "cosine", "step"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]


@dataclass(frozen=True)
class EncoderRecipe:
    """The encoder: what you keep."""

    family: str = field(default="modernbert", metadata={"table": FAMILIES})
    """Architecture, a stock Hugging Face model; modernbert (pre-norm, rotary) learns fastest on little compute."""
    init: str | None = None
    """Folder or Hub id of an encoder to go on from; its shape then replaces the one given here."""
    start: str = field(default="corpus", metadata={"table": STARTS})
    """First weights of a new encoder: corpus: word vectors and frequencies counted in the data, and layers that begin
    by looking at the words near by; words: only the former; random."""
    layers: int = 12
    """Number of layers."""
    width: int = 256
    """Hidden size."""
    heads: int = 4
    """Attention heads; must divide the width."""
    ffn_width: int | None = None
    """Feed-forward width; by default what makes a layer cost as much as 4 x width does without a gate."""
    window: int | None = None
    """How many positions local layers see to each side (modernbert); by default every layer sees the whole row."""
    global_every: int = 3
    """With a window, one layer of so many sees the whole row, the first among them."""
    embedding_width: int | None = None
    """Width of the word table, where it is not the layers' (electra, deberta-v2)."""
    key_value_heads: int | None = None
    """Heads of keys and values, where several heads of queries share one (eurobert)."""
    buckets: int | None = None
    """How many distances to each side are told apart (deberta-v2)."""
    tied: bool = True
    """Whether the head's word table is the encoder's."""
    init_std: float = 0.02
    """Standard deviation of new weights; 0.02 suits widths near 768, narrow encoders start faster with more."""
    rotary_base: float | None = None
    """Base of the rotary positions: smaller tells near positions apart better, larger reaches further; by default
    10,000, and with `init` what that encoder has."""
    dropout: float = 0.0
    """Dropout while pre-training; also written into the exported config."""
    max_length: int | None = None
    """Longest input the encoder will take, in tokens; by default the row length."""
    vocab_size: int | None = None
    """Rows of the word table; by default the size of the data's tokenizer, larger leaves rows unused."""


@dataclass(frozen=True)
class MaskRecipe:
    """Which positions are hidden and predicted, as shares of a row."""

    pattern: str = field(default="uniform", metadata={"table": PATTERNS})
    """How positions are chosen; uniform: each by itself; word: whole words; span: runs of 1 to 10 words; pmi: whole
    collocations, which `latemask prepare --pmi` found in the data."""
    rate: float = 0.4
    """Share of a row that is predicted."""
    rate_end: float | None = None
    """Share at the end of the run; by default it stays what it is."""
    rate_schedule: RateSchedule = "linear"
    """How the share goes from `rate` to `rate_end`: in a straight line, as half a cosine, or in one step, halfway."""
    random: float = 0.0
    """Of the predicted positions, the share that stays visible as a random token (BERT: 0.1)."""
    keep: float = 0.0
    """Of the predicted positions, the share that stays visible unchanged (BERT: 0.1)."""
    drop: float = 0.0
    """Share of a row that is hidden from the encoder and predicted by nobody."""

    def rate_at(self, progress: float) -> float:
        """Return the share that is predicted at a point of the run, from 0 to 1."""
        if self.rate_end is None:
            return self.rate
        if self.rate_schedule == "step":
            progress = float(progress >= 0.5)
        elif self.rate_schedule == "cosine":
            progress = (1 - math.cos(math.pi * progress)) / 2
        return self.rate_end if progress == 1 else self.rate + progress * (self.rate_end - self.rate)

    def point_of(self, done: float) -> float:
        """Return where in the run so much of the way to the last share is done, from 0 to 1."""
        if self.rate_schedule == "step":
            return 0.5
        return done if self.rate_schedule == "linear" else math.acos(1 - 2 * min(max(done, 0.0), 1.0)) / math.pi


@dataclass(frozen=True)
class TrainRecipe:
    """How the run is optimised and watched."""

    batch_size: int = 256
    """Rows a step, over all devices and accumulation."""
    micro_batch_size: int | None = None
    """Rows a device takes at once; the rest is accumulated. By default no accumulation."""
    optimizer: str = field(default="adamw", metadata={"table": OPTIMIZERS})
    """What turns gradients into steps."""
    schedule: str = field(default="linear", metadata={"table": SCHEDULES})
    """How the learning rate goes after the warm-up; linear and cosine: it falls to 0; wsd: it stays until the decay."""
    learning_rate: float | None = None
    """Peak learning rate; by default 1e-3, and with encoder.init 1e-4 x 768 / width."""
    warmup: float = 0.06
    """Share of the steps in which the learning rate rises; from 1 on: how many steps."""
    decay: float = 0.1
    """Share of the steps in which wsd lets it fall to 0, at the end; from 1 on: how many steps."""
    weight_decay: float = 0.01
    """Weight decay, not on biases and norms."""
    beta1: float = 0.9
    """AdamW beta 1."""
    beta2: float = 0.98
    """AdamW beta 2."""
    epsilon: float = 1e-6
    """AdamW epsilon."""
    clip: float = 1.0
    """Largest gradient norm; 0 turns clipping off."""
    average: float = 0.0
    """Decay of a moving average of the weights, which is validated and exported instead of the last ones; 0: none."""
    precision: Precision = "auto"
    """Mixed precision; auto takes bf16 on a GPU or CPU that has it and fp32 elsewhere."""
    compile: bool = False
    """Compile the forward pass and the loss (torch.compile), in one graph; pays in long runs, after a minute or so."""
    finish_early: float = 0.0
    """Share of the steps, at the end, with [MASK]s in the encoder's input (late masking: elsewhere they always are);
    then it knows its mask token, and `export --mlm` gives a masked language model."""
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
    report_to: tuple[str, ...] = field(default=("tensorboard",), metadata={"table": TRACKERS})
    """Where the log lines go beside metrics.jsonl; several may be named, or none."""
    keep_at: tuple[int, ...] = ()
    """Steps whose checkpoints are written and kept whatever happens: to branch from."""


@dataclass(frozen=True)
class BudgetRecipe:
    """What the run may spend: exactly one of these."""

    steps: int | None = None
    """Optimizer steps."""
    tokens: float | None = None
    """Tokens of text, hidden ones included; with `select`, of the rows that are trained on."""
    flops: float | None = None
    """Floating-point operations, forward and backward."""


@dataclass(frozen=True)
class Recipe:
    """All of a run."""

    objective: str = field(default="late", metadata={"table": OBJECTIVES})
    """What is learnt: late masking; early, the MLM baseline with [MASK] at the input; or a neighbour of theirs
    (docs/neighbours.md)."""
    length: int = 128
    """Row length in tokens."""
    seed: int = 0
    """Fixes weights, order and masks."""
    encoder: EncoderRecipe = field(default_factory=EncoderRecipe)
    """Encoder"""
    mask: MaskRecipe = field(default_factory=MaskRecipe)
    """Mask"""
    options: Any = None
    """The objective's own section; by default as the objective has it. One of another objective means nothing."""
    train: TrainRecipe = field(default_factory=TrainRecipe)
    """Training"""
    select: SelectRecipe = field(default_factory=SelectRecipe)
    """Selection"""
    budget: BudgetRecipe = field(default_factory=BudgetRecipe)
    """Budget"""

    def __post_init__(self) -> None:
        own = OBJECTIVES[self.objective].Options
        if not isinstance(self.options, own):
            object.__setattr__(self, "options", own())

    @property
    def counts(self) -> MaskCounts:
        """How many positions of a row are what; the same in every row. (Of a rate that changes: at the start.)"""
        return MaskCounts.of(self.mask, self.length)

    def at(self, progress: float) -> Recipe:
        """Return the recipe as it is at a point of the run, from 0 to 1: with a rate that stays, and one objective."""
        mask, finish = self.mask, self.train.finish_early
        if mask.rate_end is not None:
            mask = replace(mask, rate=mask.rate_at(progress), rate_end=None, rate_schedule=MaskRecipe.rate_schedule)
        last = OBJECTIVES[self.objective].finish if finish and progress >= 1 - finish else None
        return replace(self, mask=mask, objective=last or self.objective, train=replace(self.train, finish_early=0.0))

    def last_part(self, steps: int) -> int:
        """Return the step after which [MASK]s stand in the input; `steps`, where they never do or always did."""
        finish = self.train.finish_early if OBJECTIVES[self.objective].finish else 0
        return min(steps - 1, round((1 - finish) * steps)) if finish else steps

    @property
    def rows_read(self) -> int:
        """Rows that a step reads: those it trains on or, where it selects, those it chooses them from."""
        return self.select.rows(self.train.batch_size)

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
        random = round(mask.random * predicted)
        kept = min(round(mask.keep * predicted), predicted - random)
        return cls(length, predicted, random, kept, dropped=round(mask.drop * length))

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


@dataclass(frozen=True)
class Stem:
    """What a branch has behind it when it begins: the steps of the run it came from, and what they cost in all."""

    step: int = 0
    samples: int = 0
    tokens: int = 0
    flops: float = 0.0
    tokens_read: int = 0

    def first_sample(self, step: int, rows: int) -> int:
        """Return the first sample of a step that reads so many rows: they go on where the stem's ended."""
        return self.samples + (step - self.step) * rows

    def tokens_at(self, step: int, recipe: Recipe) -> int:
        """Return the tokens of text trained on after so many steps, the stem's included."""
        return self.tokens + (step - self.step) * recipe.train.batch_size * recipe.length

    def tokens_read_at(self, step: int, recipe: Recipe) -> int:
        """Return the tokens of text read by then: more than those trained on, where rows are selected."""
        return self.tokens_read + (step - self.step) * recipe.rows_read * recipe.length


ROOT = Stem()
"""Nothing: what a run has behind it that is no branch."""


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
            ffn_width=encoder.ffn_width or FAMILIES[encoder.family].ffn_width(encoder.width),
            max_length=recipe.max_length,
            vocab_size=encoder.vocab_size or vocab_size,
            rotary_base=encoder.rotary_base or _ROTARY_BASE,
        ),
        train=replace(recipe.train, learning_rate=recipe.train.learning_rate or _learning_rate(encoder)),
    )


def _learning_rate(encoder: EncoderRecipe) -> float:
    """What is trained already wants a lower rate than what is not, the wider the lower."""
    return _NEW_RATE if encoder.init is None else float(f"{_CONTINUING_RATE * 768 / encoder.width:.2g}")


# What needs the sections above, and belongs to the room all the same.
from latemask.recipe.checks import check_recipe as check_recipe  # noqa: E402
from latemask.recipe.files import bundled_recipes as bundled_recipes  # noqa: E402
from latemask.recipe.files import differences as differences  # noqa: E402
from latemask.recipe.files import dump_recipe as dump_recipe  # noqa: E402
from latemask.recipe.files import find_recipe as find_recipe  # noqa: E402
from latemask.recipe.files import flat as flat  # noqa: E402
from latemask.recipe.files import load_recipe as load_recipe  # noqa: E402
from latemask.recipe.files import sections_of_objectives as sections_of_objectives  # noqa: E402
from latemask.recipe.files import tree_of as tree_of  # noqa: E402
