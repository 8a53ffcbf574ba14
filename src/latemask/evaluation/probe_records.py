"""What probes found: a record as a JSON file, read back with care, and its tables and words."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from latemask.evaluation.effective_rank import EffectiveRank, LayerRank
from latemask.ground.console import printable
from latemask.ground.errors import UserError
from latemask.ground.files import write_json_atomically
from latemask.ground.tables import Rows
from latemask.recipe import OBJECTIVES

FORMAT = 1
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError)


@dataclass(frozen=True)
class LayerScores:
    """Accuracies of a probe on one layer of this encoder and of an untrained one, for each split."""

    layer: str
    encoder: list[float]
    random: list[float]


@dataclass(frozen=True)
class ProbeResult:
    """One linear probe: accuracies of this encoder and of an untrained one, for each split; on the last layer."""

    task: str
    question: str
    examples: int
    majority: float
    encoder: list[float]
    random: list[float]
    layers: list[LayerScores] = field(default_factory=list)
    """From layer 0 to the last, then the mean of the last few; empty where only the last was probed."""


@dataclass(frozen=True)
class ProbeRecord:
    """All that `latemask probe` found out about an encoder."""

    encoder: str
    identity: str
    objective: str | None
    """How it was pre-trained, where its run says it."""
    text: str
    probes: list[ProbeResult]
    rank: EffectiveRank | None
    made_by: list[dict[str, Any]]

    def as_record(self) -> dict[str, Any]:
        """Return what is written."""
        return {
            "format": FORMAT,
            "made_by": self.made_by,
            "encoder": {"name": self.encoder, "identity": self.identity, "objective": self.objective},
            "text": self.text,
            "probes": [asdict(probe) for probe in self.probes],
            "rank": asdict(self.rank) if self.rank else None,
        }

    def write(self, path: Path) -> None:
        """Write the record, in one piece."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json_atomically(path, self.as_record())


def read_probe(path: Path) -> ProbeRecord:
    """Read a record that `latemask probe --out` wrote."""
    try:
        record = json.loads(path.read_text("utf-8"))
        if record["format"] != FORMAT:
            raise UserError(
                f"{printable(str(path))}: a probe's record of format {printable(str(record['format']))}, "
                f"this latemask reads {FORMAT}"
            )
        return _checked(record)
    except FileNotFoundError:
        raise UserError(f"{printable(str(path))}: no such file") from None
    except (*_DAMAGE, OSError):
        raise UserError(
            f"{printable(str(path))} is damaged, or no record of latemask probe; probe again with --out"
        ) from None


def _checked(record: dict[str, Any]) -> ProbeRecord:
    encoder, rank = record["encoder"], record.get("rank")
    found = ProbeRecord(
        encoder["name"],
        encoder["identity"],
        encoder.get("objective"),
        record.get("text", "the builtin text"),  # older records know no other
        [_probe(probe) for probe in record["probes"]],
        None if rank is None else _rank(rank),
        list(record["made_by"]),
    )
    _must(all(isinstance(text, str) for text in (found.encoder, found.identity, found.objective or "", found.text)))
    _must(bool(found.probes))
    names = [[layer.layer for layer in probe.layers] for probe in found.probes]
    _must(all(layers == names[0] for layers in names))
    return found


def _probe(probe: dict[str, Any]) -> ProbeResult:
    known = {entry.name: probe[entry.name] for entry in fields(ProbeResult) if entry.name != "layers"}
    found = ProbeResult(**known, layers=[LayerScores(**layer) for layer in probe.get("layers", [])])
    _must(isinstance(found.task, str) and isinstance(found.question, str) and isinstance(found.examples, int))
    _must(all(isinstance(layer.layer, str) for layer in found.layers))
    sides = [found.encoder, found.random, *(side for one in found.layers for side in (one.encoder, one.random))]
    for scores in sides:
        _must(len(scores) == len(found.encoder) > 0)
        _must(all(map(_is_share, scores)))
    _must(_is_share(found.majority))
    return found


def _rank(rank: dict[str, Any]) -> EffectiveRank:
    sides = {side: [LayerRank(**layer) for layer in rank[side]] for side in ("encoder", "random")}
    found = EffectiveRank(**{**rank, **sides})
    _must(len(found.encoder) == len(found.random) > 0 and found.tokens > 0 and found.masks > 0)
    for layer in (*found.encoder, *found.random):
        _must(isinstance(layer.layer, int) and all(map(_is_share, (layer.clean, layer.masked, layer.with_masks))))
    _must(_is_share(found.share) and _is_share(found.mask_rate))
    return found


def _is_share(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and 0 <= value <= 1


def _must(condition: bool) -> None:
    if not condition:
        raise ValueError


def probe_rows(probes: Sequence[ProbeResult]) -> Rows:
    """Return a table of the probes on the last layer."""
    rows = [["probe", "this encoder", "random encoder", "majority", "examples"]]
    for probe in probes:
        scores = (_spread(probe.encoder), _spread(probe.random), f"{100 * probe.majority:.1f}", f"{probe.examples:,}")
        rows.append([printable(probe.question), *scores])
    return rows


def layer_rows(probes: Sequence[ProbeResult]) -> Rows:
    """Return a table of the probes layer by layer: medians over splits, of this encoder and of a random one."""
    rows = [["layer", *(name for probe in probes for name in (printable(probe.task), "random"))]]
    for layers in zip(*(probe.layers for probe in probes), strict=True):
        medians = [statistics.median(scores) for one in layers for scores in (one.encoder, one.random)]
        rows.append([printable(layers[0].layer), *(f"{100 * median:.1f}" for median in medians)])
    return rows


def layer_words(probes: Sequence[ProbeResult]) -> list[str]:
    """Say which layer is best for each probe, and whether one is better than the last for all of them together."""
    words = []
    for probe in probes:
        last, best = last_layer(probe.layers), _best(probe.layers)
        also = f"; the last layer has {_spread(last.encoder)}" if best != last else ", the last one"
        words.append(f"{printable(probe.task)}: best from {_named(best)}, {_spread(best.encoder)}{also}")
    together = _together(probes)
    last, best = last_layer(together), _best(together)
    gains = [100 * (ours - theirs) for ours, theirs in zip(best.encoder, last.encoder, strict=True)]
    if best == last:
        words.append("all probes together: no layer is better than the last; pool that one")
    elif min(gains) > 0:
        more = f"by {min(gains):.1f} to {max(gains):.1f} points" if len(gains) > 1 else f"by {gains[0]:.1f} points"
        words.append(f"all probes together: {_named(best)} is better than the last layer in every split, {more}")
    else:
        words.append(f"all probes together: {_named(best)} is best, but not in every split; pool the last layer")
    return words


def last_layer(layers: Sequence[LayerScores]) -> LayerScores:
    """Return the encoder's last layer, which no mean of layers is."""
    return [layer for layer in layers if layer.layer.isdigit()][-1]


def _best(layers: Sequence[LayerScores]) -> LayerScores:
    """Return the best by its median; of equals the uppermost, so that the last layer is left only for a better one."""
    numbered = sorted(layers, key=lambda layer: layer.layer.isdigit())
    return max(reversed(numbered), key=lambda layer: statistics.median(layer.encoder))


def _together(probes: Sequence[ProbeResult]) -> list[LayerScores]:
    """Average the probes, layer by layer and split by split."""
    return [
        LayerScores(
            layers[0].layer, *(_means([getattr(one, side) for one in layers]) for side in ("encoder", "random"))
        )
        for layers in zip(*(probe.layers for probe in probes), strict=True)
    ]


def _means(scores: list[list[float]]) -> list[float]:
    return [statistics.fmean(split) for split in zip(*scores, strict=True)]


def _named(layer: LayerScores) -> str:
    return f"layer {layer.layer}" if layer.layer.isdigit() else f"the {printable(layer.layer)} layers"


def rank_rows(rank: EffectiveRank) -> Rows:
    """Return a table of effective ranks, per cent of the width."""
    masked = f"{rank.mask_rate:.0%} [MASK]s"
    rows = [["layer", "no [MASK]", masked, f"{masked}, counted", "random, no [MASK]"]]
    for layer, random in zip(rank.encoder, rank.random, strict=True):
        shares = (layer.clean, layer.masked, layer.with_masks, random.clean)
        rows.append([str(layer.layer), *(f"{100 * share:.1f}" for share in shares)])
    return rows


def rank_words(rank: EffectiveRank, objective: str | None) -> list[str]:
    """Say what the last layer's effective rank is, and what [MASK]s do to it."""
    last = rank.encoder[-1]
    words = [
        f"last layer: {100 * last.clean:.1f} % of its dimensions hold {rank.share:.0%} of the variance of "
        f"{rank.tokens:,} real tokens; with [MASK]s in the input {100 * last.masked:.1f} %, and "
        f"{100 * last.with_masks:.1f} % with the [MASK]s' own states"
    ]
    if objective and objective in OBJECTIVES.names() and OBJECTIVES[objective].finish:
        words.append(
            f"it was pre-trained with {objective} masking and never saw a [MASK] in its input: "
            "to this encoder it is a token without a meaning"
        )
    return words


def _spread(scores: list[float]) -> str:
    return f"{100 * statistics.median(scores):.1f} ({100 * min(scores):.1f}–{100 * max(scores):.1f})"
