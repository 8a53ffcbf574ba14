"""The folder of a preparation in progress, inside the folder that it makes: what is finished survives; and the end.

OUT/.preparing/settings.json   what is being prepared; anything else starts afresh
OUT/.preparing/records/        sealed parts, the hashes of their n-grams, and finished tasks
OUT/.preparing/logs/           datatrove's: which tasks of which stage are complete, and their logs
OUT/.preparing/lock            held by the process at work
It goes away when the manifest is there. That is written last: a folder without one is not finished.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from datatrove.pipeline.base import PipelineStep
from filelock import FileLock

from latemask.ground.console import say
from latemask.ground.errors import UserError
from latemask.ground.files import exclusive_lock, write_json_atomically
from latemask.text.ngram_table import NgramTable
from latemask.text.prepared import MANIFEST, NEIGHBOURS, NGRAMS, NOTE, UNITS, PreparedData, write_manifest
from latemask.text.reading import Problems
from latemask.text.shards import SPLITS, PartRecord, ShardWriter, shard_name

FOLDER = ".preparing"
RESULT = frozenset({MANIFEST, NOTE, NGRAMS, UNITS, NEIGHBOURS, "tokenizer", *SPLITS})
"""What a finished folder holds."""
_OF_A_SHARD = (".ds", ".ds.index")
_OF_A_TOKENIZER = (".json", ".jinja", ".txt", ".model")
_OF_COUNTS = (".json", ".safetensors")


@dataclass(frozen=True)
class Workplace:
    """Paths and state of a preparation."""

    out: Path

    @property
    def folder(self) -> Path:
        """Where everything is that the result will not need."""
        return self.out / FOLDER

    @property
    def _settings_file(self) -> Path:
        return self.folder / "settings.json"

    def lock(self) -> FileLock:
        """Take the folder for this process; the system frees it however the process ends."""
        return exclusive_lock(self.folder / "lock", f"{self.out} is being prepared by another process")

    def is_begun(self) -> bool:
        """Whether a preparation was begun here, and not finished."""
        return self._settings_file.is_file()

    def foreign_files(self) -> Iterator[str]:
        """Yield what a preparation would not have put here."""
        for path in sorted(self.out.iterdir()):
            if path.name not in RESULT | {FOLDER} and path not in self._half_written():
                yield path.name
            elif path.is_dir() and path.name in RESULT:
                ours = {"tokenizer": _OF_A_TOKENIZER, NEIGHBOURS: _OF_COUNTS}.get(path.name, _OF_A_SHARD)
                foreign = (file for file in path.rglob("*") if not (file.is_file() and file.name.endswith(ours)))
                yield from (str(file.relative_to(self.out)) for file in foreign)

    def _half_written(self) -> list[Path]:
        """What a process was writing aside when it was killed."""
        return [path for name in (MANIFEST, NOTE, NEIGHBOURS) for path in self.out.glob(f".{name}.*")]

    def goes_on(self, settings: dict[str, Any]) -> bool:
        """Whether an interrupted preparation with the same settings is here."""
        try:
            return json.loads(self._settings_file.read_text("utf-8")) == json.loads(json.dumps(settings))
        except (OSError, ValueError):
            return False

    def start(self, settings: dict[str, Any]) -> None:
        """Begin afresh: remove what an earlier preparation left, then say what is being prepared."""
        self._settings_file.unlink(missing_ok=True)  # first: what is half removed must not be gone on with
        for name in RESULT:
            path = self.out / name
            path.unlink() if path.is_file() else shutil.rmtree(path, ignore_errors=True)
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()
        write_json_atomically(self._settings_file, settings)

    def clear_unfinished(self) -> None:
        """Remove parts that an interrupted process was writing, and how far it was."""
        for name in ("writing", "progress"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def remove_if_useless(self) -> None:
        """Leave nothing where nothing was finished that a next run could use."""
        if self.folder.is_dir() and not (self.folder / "records").is_dir() and not (self.out / "tokenizer").is_dir():
            self.remove()
            if not any(self.out.iterdir()):
                self.out.rmdir()

    def remove(self) -> None:
        """Leave nothing but the result."""
        for path in self._half_written():
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass
class Finish:
    """All tasks of `pipeline`, whose last step is a ShardWriter, → the manifest."""

    out: Path
    settings: dict[str, Any]
    pipeline: list[PipelineStep]
    tasks: int

    def __call__(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        """Finish as a step of a datatrove pipeline, on a cluster."""
        self.run()

    def run(self) -> PreparedData:
        """Write the manifest, say what was prepared, and remove what is no longer needed."""
        writer = _writer_of(self.pipeline)
        parts = self._parts()
        problems, dropped = Problems(), Counter[str]()
        for record in map(writer.ledger.task, range(self.tasks)):
            problems.count += record.skipped
            problems.examples = (problems.examples + record.examples)[:5]
            dropped.update(record.dropped)
        if not parts:
            raise no_text(problems, dropped)
        if self.settings["validation"]:
            parts = self._with_one_held_out(parts)
        if not any(part.documents["train"] for part in parts.values()):
            raise UserError("every document went to validation; lower --validation or give more text")
        data = write_manifest(
            self.out,
            settings=self.settings,
            token_bytes=writer.token_size,
            splits={split: _split_record(parts, split) for split in SPLITS},
            files={name: record for part in parts.values() for name, record in part.files.items()},
            stamps={name: stamp for part in parts.values() for name, stamp in part.stamps.items()},
            skipped=problems.count,
            dropped=dict(dropped),
            **self._ngrams(parts),
        )
        report(data, problems)
        Workplace(self.out).remove()
        return data

    def _parts(self) -> dict[tuple[int, int], PartRecord]:
        ledger = _writer_of(self.pipeline).ledger
        return {(rank, n): part for rank in range(self.tasks) for n, part in enumerate(ledger.parts(rank))}

    def _ngrams(self, parts: dict[tuple[int, int], PartRecord]) -> dict[str, Any]:
        """Put the n-grams of all parts in their place, and return what the manifest says of them."""
        writer = _writer_of(self.pipeline)
        if writer.ngrams_one_in is None:
            return {}
        hashes = {writer.ledger.ngrams(shard_name(*place)): part.ngrams for place, part in parts.items() if part.ngrams}
        aside = writer.work / NGRAMS
        table = NgramTable.write(hashes, aside, writer.ngrams_one_in)
        aside.replace(self.out / NGRAMS)
        return {"ngrams": asdict(table)}

    def _with_one_held_out(self, parts: dict[tuple[int, int], PartRecord]) -> dict[tuple[int, int], PartRecord]:
        """Raise the limit to the nearest document, and do its tasks again: a small corpus has none below.

        Derived from the records alone, so that it is taken up again wherever it was interrupted.
        """
        smallest = min(part.smallest_hash for part in parts.values())
        if smallest == max(part.largest_hash for part in parts.values()):
            raise UserError(
                "found only 1 document (or always the same), and validation needs one of its own: give more (an empty "
                "line parts documents of a .txt), or pass --validation 0"
            )
        if smallest < _writer_of(self.pipeline).validation_limit:
            return parts
        nearest = [key for key, part in parts.items() if part.smallest_hash == smallest]
        for rank in sorted({rank for rank, n in nearest if not parts[rank, n].documents["validation"]}):
            self._do_again(rank, validation_limit=smallest + 1)
        return self._parts()

    def _do_again(self, rank: int, validation_limit: int) -> None:
        pipeline = deepcopy(self.pipeline)
        writer = _writer_of(pipeline)
        writer.validation_limit = validation_limit
        for path in (self.out / "train").glob(f"{shard_name(rank, 0)[:6]}*"):
            path.unlink()
        for path in Workplace(self.out).folder.glob(f"logs/*/completions/{rank:05d}"):
            path.unlink()  # if we are interrupted here, the task is done again
        writer.ledger.forget(rank)
        data = None
        for step in pipeline:
            data = step(data, rank, self.tasks)


def _writer_of(pipeline: list[PipelineStep]) -> ShardWriter:
    writer = pipeline[-1]
    assert isinstance(writer, ShardWriter)
    return writer


def _split_record(parts: dict[tuple[int, int], PartRecord], split: str) -> dict[str, Any]:
    present = {f"{split}/{shard_name(*place)}.ds": part for place, part in parts.items() if part.documents[split]}
    return {
        "documents": sum(part.documents[split] for part in present.values()),
        "tokens": sum(part.tokens[split] for part in present.values()),
        "text_bytes": sum(part.text_bytes[split] for part in present.values()),
        "shards": [{"file": name, "first": 0, "tokens": part.tokens[split]} for name, part in present.items()],
    }


def no_text(problems: Problems, dropped: dict[str, int]) -> UserError:
    """Say why nothing is left."""
    if any(dropped.values()):
        return UserError(f"cleaning left no document ({_counts(dropped)})")
    return UserError(f"no text found in the input{problems.first()}")


def report(data: PreparedData, problems: Problems) -> None:
    """Say what is in the folder, and what is not."""
    for example in problems.examples:
        say(f"skipped {example}")
    if problems.count:
        say(f"skipped {problems.count:,} in all; --strict stops at the first")
    if any(data.manifest["dropped"].values()):
        say(f"dropped {_counts(data.manifest['dropped'])}")
    say(f"vocabulary: {data.vocabulary.size:,} pieces")
    for split in SPLITS:
        record = data.manifest["splits"][split]
        say(f"{split}: {record['tokens']:,} tokens in {record['documents']:,} documents")
    say(f"prepared: {data.folder}")


def _counts(dropped: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
