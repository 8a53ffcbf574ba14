"""What to prepare: files, the builtin text, or a dataset of the Hub. Each becomes a reader of datatrove."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from types import MethodType
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.readers import HuggingFaceDatasetReader

from latemask.ground.console import one_line, printable, say
from latemask.ground.errors import UserError
from latemask.text.builtin import BuiltinReader
from latemask.text.lines import cut
from latemask.text.progress import Meter
from latemask.text.reading import FilesReader, Problems, counting_adapter, documents
from latemask.text.sources import LARGEST_GROUP, Piece, Source, group_pieces, group_size


class Corpus(ABC):
    """Documents in a number of groups that depends on the corpus alone; each is read by one task of datatrove."""

    identity: dict[str, Any]
    """What tells this corpus from another, or from itself at another time."""
    sizes: list[int]
    """How much there is to read in each group, for progress: bytes or rows; zeros if nobody knows."""
    text_sizes: list[int]
    """About how many bytes of text each holds."""

    @abstractmethod
    def reader(self, problems: Problems, meter: Meter) -> Any:
        """Return the first step of a pipeline."""


class Files(Corpus):
    """Files, wherever they lie; names, sizes and times tell them apart."""

    def __init__(self, sources: list[Source], text_field: str = "text"):
        inputs = [{"path": s.path, "format": s.format, "bytes": s.size, "stamp": s.stamp} for s in sources]
        self.identity = {"inputs": inputs, "text_field": text_field}
        self.text_field = text_field
        self.groups = group_pieces(sources)
        self.sizes = [sum(piece.size for piece in group) for group in self.groups]
        self.text_sizes = [sum(piece.text_size for piece in group) for group in self.groups]

    def reader(self, problems: Problems, meter: Meter) -> FilesReader:
        """Return the reader of the files."""
        return FilesReader(self.groups, problems, meter, self.text_field)


class Builtin(Corpus):
    """The documentation that is on this machine: collected into a file, then read like any other."""

    def __init__(self, work: Path):
        self.file = (work / "builtin.jsonl").absolute()
        self.identity = {"builtin": True}  # there is only one
        self.sizes = self.text_sizes = [1]

    def reader(self, problems: Problems, meter: Meter) -> FilesReader:
        """Collect the text if it is not there yet, and return its reader."""
        if not self.file.exists():
            say("collecting the documentation that is on this machine")
            self.file.parent.mkdir(parents=True, exist_ok=True)
            aside = self.file.with_suffix(".part")
            with aside.open("w", encoding="utf-8") as file:
                file.writelines(json.dumps({"text": document.text}) + "\n" for document in BuiltinReader().run())
            aside.replace(self.file)
        size = self.file.stat().st_size
        self.sizes = self.text_sizes = [size]
        source = Source("builtin text", str(self.file), True, "jsonl", None, size, "")
        return FilesReader([[Piece(source)]], problems, meter)


class HubDataset(Corpus):
    """A dataset of the Hugging Face Hub, or a local folder that `datasets` understands."""

    def __init__(self, name: str, config: str | None, split: str, streaming: bool, text_field: str):
        import datasets

        self.name, self.streaming, self.text_field = name, streaming, text_field
        self.options = {"split": split, **({"name": config} if config else {})}
        datasets.disable_progress_bars()
        try:
            dataset: Any = datasets.load_dataset(name, **self.options, streaming=streaming)
        except Exception as error:  # datasets and the Hub's client have many kinds for "not there"
            raise UserError(f"the dataset '{printable(name)}' cannot be loaded: {one_line(error)}") from None
        if text_field not in (dataset.column_names or [text_field]):
            raise UserError(
                f"the dataset '{printable(name)}' has no column '{text_field}'; it has "
                f"{', '.join(map(repr, dataset.column_names[:10]))}. Say which holds the text: --text-field"
            )
        if streaming:
            self.sizes = [0] * max(1, dataset.num_shards)
            self.text_sizes = [LARGEST_GROUP] * len(self.sizes)
        else:
            groups = max(1, math.ceil(dataset.data.nbytes / group_size(dataset.data.nbytes)))
            self.sizes = [len(range(rank, len(dataset), groups)) for rank in range(groups)]
            self.text_sizes = [dataset.data.nbytes // groups] * groups
        size = "" if streaming else f"{len(dataset)} rows, {dataset.data.nbytes} bytes"
        known = {"streaming": streaming, "size": size, "text_field": text_field}
        self.identity = {"hf_dataset": name, **self.options, **known}

    def reader(self, problems: Problems, meter: Meter) -> HubReader:
        """Return datatrove's reader of the dataset."""
        return HubReader(self, problems, meter)


class HubReader(HuggingFaceDatasetReader):
    """datatrove's reader, with our count of rows without text, and progress."""

    name = "🤗 latemask dataset"

    def __init__(self, corpus: HubDataset, problems: Problems, meter: Meter):
        super().__init__(corpus.name, corpus.options, corpus.streaming, text_key=corpus.text_field)
        self.problems = problems
        self.meter = meter

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Yield the documents of group `rank`."""
        self.adapter = MethodType(counting_adapter(self.text_key, self.problems, printable(self.dataset)), self)
        self.meter.start(rank)
        for number, document in enumerate(super().run(data, rank, world_size), 1):
            yield from documents(cut(document.text), document.id)
            self.meter.show(number)
