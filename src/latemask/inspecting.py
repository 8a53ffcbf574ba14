"""`latemask inspect`: what is in a data folder, in numbers and as a model will see it."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from latemask.ground.console import printable
from latemask.ground.errors import UserError
from latemask.masking.masks import draw_masks
from latemask.masking.patterns import vocabulary_for
from latemask.masking.samples import SampleDataset
from latemask.recipe import MaskRecipe, Recipe, check_recipe
from latemask.text import Mixture, PreparedData
from latemask.text.rows import count_tokens, document_lengths, part_of
from latemask.text.shards import SPLITS
from latemask.text.units import best_units, has_units, units_text

_MOST_COUNTED = 100_000_000  # tokens; enough for every share that is shown
_RARE = 100
_EXAMPLES = 3  # units of each number of words
_BINS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


def inspect(
    folder: str | Path,
    *,
    rows: int = 3,
    length: int = 128,
    rate: float = 0.5,
    pattern: str = "uniform",
    seed: int = 0,
    verify: bool = False,
    json: bool = False,
) -> dict[str, Any]:
    """Show what is in a folder that `latemask prepare` made.

    Args:
        folder: The data folder.
        rows: How many rows to show, with a mask drawn.
        length: Tokens of a row.
        rate: Share of a row that is masked.
        pattern: How masked positions are chosen, as mask.pattern says it: uniform, word, span, pmi.
        seed: Which rows and masks.
        verify: Read every file and compare it with its checksum.
        json: Print one JSON object instead of a page.
    """
    if rows < 0:
        raise UserError(f"--rows {rows} is less than none")
    recipe = Recipe(length=length, mask=MaskRecipe(pattern, rate), seed=seed)
    check_recipe(recipe)
    data = PreparedData.open(folder, verify=verify, everything=True)
    facts = {
        "folder": str(data.folder),
        "sources": data.sources,
        "splits": {split: _split(data, split) for split in SPLITS},
        "disk_bytes": sum(record["bytes"] for record in data.manifest["files"].values()),
        "token_bytes": data.token_bytes,
        "skipped": data.manifest["skipped"],
        "dropped": data.manifest["dropped"],
        "vocabulary": _vocabulary(data),
        "extension": data.manifest.get("extension"),
        "units": _units(data),
        "lengths": _lengths(data),
        "length": length,
        "rows": _rows(data, recipe, rows),
        "checksums": "match" if verify else "not compared",
        "versions": data.manifest["versions"],
    }
    print(json_format.dumps(facts, indent=2)) if json else _show(facts, Console(highlight=False))
    return facts


def _split(data: PreparedData, split: str) -> dict[str, Any]:
    record = data.manifest["splits"][split]
    names = [f"{shard['file']}{end}" for shard in record["shards"] for end in ("", ".index")]
    on_disk = sum(data.manifest["files"][name]["bytes"] for name in names)
    return {
        "documents": record["documents"],
        "tokens": record["tokens"],
        "shards": len(record["shards"]),
        "text_bytes": record["text_bytes"],
        "text_bytes_per_token": _ratio(record["text_bytes"], record["tokens"]),
        "disk_bytes_per_token": _ratio(on_disk, record["tokens"]),
    }


def _ratio(part: float | None, whole: float) -> float | None:
    return part / whole if part is not None and whole else None


def _vocabulary(data: PreparedData) -> dict[str, Any]:
    """Count the pieces that the training text uses."""
    shards = part_of(data.shards("train"), _MOST_COUNTED)
    counts = count_tokens(shards, data.token_bytes, data.vocabulary.size)[: data.vocabulary.size]
    total = int(counts.sum())
    ordinary: np.ndarray = np.delete(counts, data.vocabulary.special)
    unknown = data.tokenizer.unk_token_id
    return {
        "size": data.vocabulary.size,
        "counted_tokens": total,
        "unknown_share": _ratio(int(counts[unknown]) if unknown is not None else 0, total),
        "unused_pieces": int((ordinary == 0).sum()),
        "rare_pieces": int((ordinary < _RARE).sum()),
        "rare_share": _ratio(int(ordinary[ordinary < _RARE].sum()), total),
    }


def _units(data: PreparedData) -> dict[str, Any] | None:
    """Count the collocations that are kept, and show the best of each number of words."""
    if not has_units(data.manifest):
        return None
    return {"found": data.manifest["units"]["found"], "examples": best_units(data, _EXAMPLES)}


def _lengths(data: PreparedData) -> dict[str, Any]:
    lengths = document_lengths(data.shards("train"))
    if not len(lengths):
        return {"median": None, "mean": None, "longest": None, "histogram": []}
    counts, _ = np.histogram(lengths, bins=[0, *(edge + 1 for edge in _BINS), np.iinfo(np.int64).max])
    bins = zip([*_BINS, None], counts, strict=True)
    return {
        "median": float(np.median(lengths)),
        "mean": float(lengths.mean()),
        "longest": int(lengths.max()),
        "histogram": [{"up_to": edge, "documents": int(count)} for edge, count in bins],
    }


def _rows(data: PreparedData, recipe: Recipe, count: int) -> list[list[dict[str, Any]]] | None:
    """Draw samples as training does; return each as stretches of visible and masked text, None if there is no row."""
    rows = data.rows("train", recipe.length)
    if not len(rows):
        return None
    if not count:
        return []
    samples = SampleDataset(rows, count, seed=recipe.seed).__getitems__(range(count))
    ids = np.stack([sample["ids"] for sample in samples])
    vocabulary = vocabulary_for(recipe.mask.pattern, Mixture((data,), (1.0,)))
    masks = draw_masks(ids, np.arange(count), recipe.counts, vocabulary, recipe.seed, recipe.mask.pattern)
    masked: np.ndarray = np.zeros(ids.shape, bool)
    np.put_along_axis(masked, masks.masked, True, axis=1)
    return [_stretches(data.tokenizer, *pair) for pair in zip(ids, masked, strict=True)]


def _stretches(tokenizer: Any, ids: np.ndarray, masked: np.ndarray) -> list[dict[str, Any]]:
    starts = np.flatnonzero(np.diff(masked, prepend=~masked[:1]))
    return [
        {"text": tokenizer.decode(stretch), "tokens": len(stretch), "masked": bool(masked[start])}
        for start, stretch in zip(starts, np.split(ids, starts[1:]), strict=True)
    ]


def _show(facts: dict[str, Any], console: Console) -> None:
    def line(name: str, text: str) -> None:
        console.print(f"{name:<12}{text}", markup=False, soft_wrap=True)

    line("data", printable(facts["folder"]))
    if facts["sources"]:
        line("from", printable(", ".join(facts["sources"][:5])) + (" …" if len(facts["sources"]) > 5 else ""))
    for split, record in facts["splits"].items():
        ratio = record["text_bytes_per_token"]
        text = f"{record['tokens']:,} tokens in {record['documents']:,} documents, {record['shards']} shards"
        line(split, text + (f", {ratio:.2f} bytes of text a token" if ratio else ""))
    line("on disk", f"{facts['disk_bytes'] / 1e6:,.1f} MB, {facts['token_bytes']} bytes a token and the index")
    left_out = {"lines that could not be used": facts["skipped"], **facts["dropped"]}
    if any(left_out.values()):
        line("left out", ", ".join(f"{count:,} {reason}" for reason, count in left_out.items() if count))
    line("vocabulary", _vocabulary_text(facts["vocabulary"]))
    if extension := facts["extension"]:
        line("new pieces", _extension_text(extension))
    if units := facts["units"]:
        line("units", f"{units_text(units['found'])}: {', '.join(printable(repr(text)) for text in units['examples'])}")
    line("checksums", facts["checksums"] + ("" if facts["checksums"] == "match" else " (--verify reads every file)"))
    if facts["lengths"]["histogram"]:
        _show_lengths(facts["lengths"], console)
    if facts["rows"]:
        _show_rows(facts["rows"], console)
    elif facts["rows"] is None:
        console.print(f"\nno row of {facts['length']:,} tokens: there are fewer tokens to train on")


def _vocabulary_text(facts: dict[str, Any]) -> str:
    pieces = f"{facts['size']:,} pieces"
    if not facts["counted_tokens"]:
        return pieces
    rare = f"{facts['rare_pieces']:,} fewer than {_RARE} times ({facts['rare_share']:.2%} of the text)"
    return f"{pieces}: {facts['unused_pieces']:,} never used, {rare}, {facts['unknown_share']:.2%} unknown"


def _extension_text(facts: dict[str, Any]) -> str:
    examples = ", ".join(printable(repr(example)) for example in facts["examples"])
    added = f"{facts['pieces']:,} behind the {facts['base_pieces']:,} of {printable(facts['base'])}"
    return f"{added}, {facts['saved']:.1%} fewer tokens in the sample: {examples}"


def _show_lengths(facts: dict[str, Any], console: Console) -> None:
    console.print(
        f"\ndocuments by length in tokens: median {facts['median']:,.0f}, mean {facts['mean']:,.0f}, "
        f"longest {facts['longest']:,}"
    )
    most = max(entry["documents"] for entry in facts["histogram"])
    for entry in facts["histogram"]:
        label = f"to {entry['up_to']:,}" if entry["up_to"] else "longer"
        bar = "█" * -(-40 * entry["documents"] // most)
        console.print(f"  {label:>9}  {bar} {entry['documents']:,}")


def _show_rows(rows: list[list[dict[str, Any]]], console: Console) -> None:
    coloured = console.is_terminal
    legend = "[reverse]hidden[/reverse] from the encoder" if coloured else "what is hidden from the encoder in ⟦ ⟧"
    console.print(f"\nrows as the model sees them: {legend}", highlight=False)
    for row in rows:
        shown = Text("  ")
        for stretch in row:
            text, masked = printable(stretch["text"]), stretch["masked"]
            shown.append(f"⟦{text}⟧" if masked and not coloured else text, "reverse" if masked else None)
        console.print(shown, soft_wrap=not coloured, end="\n\n")
