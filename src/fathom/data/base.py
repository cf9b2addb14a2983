"""What a source of batches is, and how its batches reach the device without the device waiting for them.

The rule every data set keeps: real and synthetic batches have the same names, types and shapes.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from fathom.core.errors import DataError
from fathom.machine.host import usable_cores

Batch = dict[str, Tensor]

RESIDENT_BYTES = 2 << 30  # an in-memory set up to this size is kept on the device whole, as a careful engineer would


class Dataset(ABC):
    """Items known by number; asked for a batch at a time, so that a reader can vectorise.

    An item may cost real work (decoding a JPEG): the feed then reads in background processes.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, indices: Sequence[int]) -> Batch: ...


class InMemory(Dataset):
    """A set small enough to be held as tensors, one row per item."""

    def __init__(self, **columns: Tensor) -> None:
        lengths = {len(column) for column in columns.values()}
        if len(lengths) != 1 or lengths == {0}:
            raise ValueError(f"columns must have one common, positive length: {lengths}")
        self.columns: Batch = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, indices: Sequence[int]) -> Batch:
        rows = torch.as_tensor(indices)
        return {name: column[rows] for name, column in self.columns.items()}

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns.values())


class Order(Sampler[list[int]]):
    """Batches of item numbers without end: one seeded shuffle after another, cut into batches."""

    def __init__(self, items: int, batch: int, seed: int, start: int = 0) -> None:
        self.items, self.batch, self.seed, self.start = items, batch, seed, start

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.seed)
        waiting: list[int] = []
        for number in count():
            while len(waiting) < self.batch:
                waiting += torch.randperm(self.items, generator=generator).tolist()
            if number >= self.start:
                yield waiting[: self.batch]
            del waiting[: self.batch]


def feed(dataset: Dataset, batch: int, device: torch.device, seed: int, start: int = 0) -> Iterator[Batch]:
    """Batches on the device, for ever, in an order that depends on the seed alone; from batch number start on."""
    order = Order(len(dataset), batch, seed, start)
    if isinstance(dataset, InMemory) and (device.type == "cpu" or dataset.nbytes <= RESIDENT_BYTES):
        return _resident(dataset, order, device)
    return _streamed(dataset, order, device)


def _resident(dataset: InMemory, order: Order, device: torch.device) -> Iterator[Batch]:
    columns = {name: column.to(device) for name, column in dataset.columns.items()}
    for indices in order:
        rows = torch.tensor(indices, pin_memory=device.type == "cuda").to(device, non_blocking=True)
        yield {name: column.index_select(0, rows) for name, column in columns.items()}


def _streamed(dataset: Dataset, order: Order, device: torch.device) -> Iterator[Batch]:
    loader: DataLoader[Any] = DataLoader(
        _Careful(dataset),  # type: ignore[arg-type]
        sampler=order,
        batch_size=None,
        num_workers=worker_count(),
        prefetch_factor=4,
        pin_memory=device.type == "cuda",
    )
    batches = (_checked(item) for item in loader)
    if device.type == "cuda":
        return _copied_ahead(batches, device)
    return ({name: column.to(device) for name, column in batch.items()} for batch in batches)


def once(dataset: Dataset, batch: int, device: torch.device) -> Iterator[Batch]:
    """Every item once, in order: what quality is judged on. The last batch may be smaller."""
    for begin in range(0, len(dataset), batch):
        rows = range(begin, min(begin + batch, len(dataset)))
        yield {name: column.to(device) for name, column in dataset[rows].items()}


def worker_count() -> int:
    """Background readers: every core this process may use but one, and no more than eight."""
    return max(1, min(8, usable_cores() - 1))


class _Careful:
    """Hands a reader's error over as a value: a worker process would bury its one line in a traceback."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __getitem__(self, indices: Sequence[int]) -> Batch | DataError:
        try:
            return self.dataset[indices]
        except DataError as error:
            return error


def _checked(item: Batch | DataError) -> Batch:
    if isinstance(item, DataError):
        raise item
    return item


def _copied_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Copies the next pinned batch on a stream of its own while the device works on the current one."""
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy() -> Batch:
        host = next(batches)
        with torch.cuda.stream(side):
            return {name: column.to(device, non_blocking=True) for name, column in host.items()}

    ahead = copy()
    while True:
        compute = torch.cuda.current_stream(device)
        compute.wait_stream(side)
        current = ahead
        for column in current.values():
            column.record_stream(compute)  # the allocator must not reuse it before the compute stream is done
        ahead = copy()
        yield current


def folder_at(path: str | Path, expects: str) -> Path:
    """The data folder a user named: as given, or below FATHOM_DATA; or an error that says what belongs there."""
    given = Path(path).expanduser()
    parent = os.environ.get("FATHOM_DATA")
    candidates = [given] + ([Path(parent).expanduser() / given] if parent and not given.is_absolute() else [])
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    looked = " or ".join(str(candidate) for candidate in candidates)
    problem = "is not a folder" if given.exists() else "no such folder"
    raise DataError.at(looked, f"{problem}; put there {expects}")
