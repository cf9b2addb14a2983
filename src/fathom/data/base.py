"""Datasets, and how their batches reach the device without making it wait.

One rule holds for every dataset: real and synthetic batches have the same names, dtypes and shapes.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from fathom.core import plugins
from fathom.core.errors import BadOption, DataError
from fathom.core.feeding import Feeding
from fathom.machine.host import usable_cores

Batch = dict[str, Tensor]
DatasetT = TypeVar("DatasetT", bound="Dataset")

SPLITS = ("train", "train_subset", "validation", "test")  # train is train_subset and what validation takes of it
HELD_OUT = 0.05  # of training data that has no validation split of its own
WORKERS = "FATHOM_READ_WORKERS"  # environment variable: how many processes read, in place of worker_count()'s choice
PREFETCHED = 4  # batches that each of them reads ahead
SHARED_MEMORY = Path("/dev/shm")  # where workers put the batches that they have read
RESIDENT_BYTES = 2 << 30  # an in-memory dataset up to this size is kept on the device as a whole


class Dataset(ABC):
    """Items by index, read a batch at a time, so that a reader can vectorise.

    Reading may be expensive (decoding a JPEG): feed() then uses worker processes.
    """

    share: tuple[int, int] = (0, 1)  # the rank whose batches are fed, of how many ranks

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, indices: Sequence[int]) -> Batch: ...

    def drawn(self, indices: Sequence[int], number: int) -> Batch:
        """The same as batch `number` of a feed, so that a reader that crops at random draws anew in each batch."""
        return self[indices]

    def subset(self, rows: Sequence[int]) -> Dataset:
        """The same with these items alone."""
        return _Subset(self, rows)

    def digests(self) -> NDArray[np.int64] | None:
        """A number for each item, equal in this process for equal items; None where they are not compared."""
        return None

    def share_of(self, rank: int, ranks: int) -> Self:
        """The same items; feed() gives every ranks-th batch, so that all ranks together see each item once an epoch."""
        shared = copy(self)
        shared.share = (rank, ranks)
        return shared

    @property
    def notes(self) -> list[str]:
        """What its reader left out, shortened or did not know, for people."""
        return []


class _Subset(Dataset):
    """Some items of a dataset; what else is known of it (class names, a vocabulary) is unchanged."""

    def __init__(self, whole: Dataset, rows: Sequence[int]) -> None:
        self.whole, self.rows = whole, np.asarray(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, indices: Sequence[int]) -> Batch:
        return self.whole[self._of_whole(indices)]

    def drawn(self, indices: Sequence[int], number: int) -> Batch:
        return self.whole.drawn(self._of_whole(indices), number)

    def _of_whole(self, indices: Sequence[int]) -> list[int]:
        found: list[int] = self.rows[np.asarray(indices)].tolist()
        return found

    def digests(self) -> NDArray[np.int64] | None:
        found = self.whole.digests()
        return None if found is None else found[self.rows]

    @property
    def notes(self) -> list[str]:
        return self.whole.notes

    def __getattr__(self, name: str) -> Any:
        if name == "whole":  # while a worker process unpacks its copy
            raise AttributeError(name)
        return getattr(self.whole, name)


def part_of_training(read: Callable[[str], DatasetT], split: str) -> DatasetT:
    """A split of data that has only train and test: a twentieth of a fixed shuffle of train is validation."""
    if split not in ("train_subset", "validation"):
        return read(split)
    whole = read("train")
    order = np.random.default_rng(0).permutation(len(whole))  # the same for every run: tuning must not see the rest
    few = max(1, round(HELD_OUT * len(whole)))
    if few == len(whole):
        raise DataError(f"{len(whole)} training items are too few to hold out any for validation")
    rows = np.sort(order[:few] if split == "validation" else order[few:]).tolist()
    return cast(DatasetT, whole.subset(rows))


def notes_of(sources: Mapping[str, Any]) -> list[str]:
    """The notes of the data of a run, each with its name; an environment, which is no dataset, has none."""
    return [f"{name} data: {note}" for name, source in sources.items() for note in getattr(source, "notes", [])]


def repeated(splits: Mapping[str, Any], items: str) -> list[str]:
    """How many items of each split are in an earlier one too: a network is evaluated there on what it has seen."""
    known: dict[str, NDArray[np.int64]] = {}
    notes = []
    for name, source in splits.items():
        if not isinstance(source, Dataset):
            continue
        if (digests := source.digests()) is None:
            notes.append(f"{name} data: {items} that are in another split, too, were not looked for")
            continue
        for other, earlier in known.items():
            if same := int(np.isin(digests, earlier).sum()):
                notes.append(f"{name} data: {same:,} of {len(digests):,} {items} also in the {other} data")
        known[name] = digests
    return notes


class Reader(ABC):
    """Reads a format that a workload does not know itself, for workloads it names.

    A reader is an entry point of group `fathom.readers`. Where one recognises a --data folder, it reads it in place of
    the workload's own reader; batches must have the names, types and shapes of the workload's synthetic ones.
    """

    workloads: ClassVar[tuple[str, ...]]  # by name

    @abstractmethod
    def recognises(self, folder: Path) -> bool:
        """Whether the folder holds this format; a look, without reading it."""

    @abstractmethod
    def read(self, workload: Any, folder: Path, split: str) -> Dataset:
        """The split ("train" or "test") of the data, for this configuration of the workload."""


def reader_for(workload: str, folder: Path) -> Reader | None:
    """The installed reader that recognises a folder for a workload; None where the workload reads it itself."""
    for name in plugins.installed("readers"):
        reader = plugins.load_class("readers", name, Reader)()  # type: ignore[type-abstract]
        if workload in reader.workloads and reader.recognises(folder):
            return reader
    return None


class InMemory(Dataset):
    """A dataset that fits in memory as tensors, one row per item."""

    compared: ClassVar[tuple[str, ...]] = ()  # the columns in which two items that are the same are equal

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

    def subset(self, rows: Sequence[int]) -> Self:
        chosen = copy(self)
        chosen.columns = self[rows]
        return chosen

    def digests(self) -> NDArray[np.int64] | None:
        if not self.compared:
            return None
        items = zip(*(self.columns[name].numpy() for name in self.compared), strict=True)
        return np.array([hash(b"".join(part.tobytes() for part in item)) for item in items], np.int64)

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns.values())


class ShuffledBatches(Sampler[list[int]]):
    """Endless batches of item indices: seeded shuffles of all items, one after another, cut into batches.

    Of several ranks, each takes its turn: batch n of rank r of R is number n R + r. The R batches n of all ranks are
    then batch n of one rank with a batch that is R times as large.
    """

    def __init__(self, items: int, batch: int, seed: int, start: int = 0, share: tuple[int, int] = (0, 1)) -> None:
        self.items, self.batch, self.seed, self.start, self.share = items, batch, seed, start, share

    def __iter__(self) -> Iterator[list[int]]:
        return (rows.tolist() for rows in self.tensors(torch.device("cpu")))

    def tensors(self, device: torch.device) -> Iterator[Tensor]:
        """The same on a device: a shuffle is copied there as a whole, and a batch is a view of it."""
        generator = torch.Generator().manual_seed(self.seed)
        pending = torch.empty(0, dtype=torch.long, device=device)
        for number in count():
            while len(pending) < self.batch:
                shuffle = torch.randperm(self.items, generator=generator, pin_memory=device.type == "cuda")
                pending = torch.cat([pending, shuffle.to(device, non_blocking=True)])
            turn, whose = divmod(number, self.share[1])
            if turn >= self.start and whose == self.share[0]:
                yield pending[: self.batch]
            pending = pending[self.batch :]


@dataclass
class _Choice:
    """A way of feeding that somebody asked for, and how the data was then fed."""

    wanted: Feeding | None
    fed: bool = False  # feed() was called: a workload that orders its batches itself does not call it
    used: Feeding | None = None  # None where the whole set is kept on the device


_choice: ContextVar[_Choice | None] = ContextVar("_choice", default=None)


@contextmanager
def feeding(wanted: Feeding | None) -> Iterator[_Choice]:
    """What is fed inside is fed in this way; None is as usual. A way that could not be applied is an error."""
    choice = _Choice(wanted)
    token = _choice.set(choice)
    try:
        yield choice
    finally:
        _choice.reset(token)
    if wanted is not None and not choice.fed:
        raise BadOption("this workload makes or orders its batches itself: workers and prefetch do not apply to it")


def feed(dataset: Dataset, batch: int, device: torch.device, seed: int, start: int = 0) -> Iterator[Batch]:
    """Endless batches on the device, in an order that depends on the seed only; starts at batch number `start`."""
    order = ShuffledBatches(len(dataset), batch, seed, start, dataset.share)
    choice = _choice.get() or _Choice(None)
    choice.fed = True
    fits = isinstance(dataset, InMemory) and (device.type == "cpu" or dataset.nbytes <= RESIDENT_BYTES)
    if choice.wanted is None and fits:
        return _resident(cast(InMemory, dataset), order, device)
    choice.used = choice.wanted or usual_feeding(device)
    return _from_workers(dataset, order, device, choice.used)


def usual_feeding(device: torch.device) -> Feeding:
    """How a set that is not kept on the device is fed where nobody asks for another way."""
    cuda = device.type == "cuda"
    return Feeding(workers=worker_count(), prefetch=PREFETCHED, pinned=cuda, overlapped=cuda)


def _resident(dataset: InMemory, order: ShuffledBatches, device: torch.device) -> Iterator[Batch]:
    columns = {name: column.to(device) for name, column in dataset.columns.items()}
    for rows in order.tensors(device):
        yield {name: column.index_select(0, rows) for name, column in columns.items()}


def _from_workers(dataset: Dataset, order: ShuffledBatches, device: torch.device, way: Feeding) -> Iterator[Batch]:
    if (way.pinned or way.overlapped) and device.type != "cuda":
        raise BadOption(f"pinned memory and overlapped copies are for a CUDA device: on {device} nothing is copied")
    if way.workers:
        check_shared_memory(dataset, order.batch, way)
    loader: DataLoader[Any] = DataLoader(
        _ErrorsAsValues(dataset),  # type: ignore[arg-type]
        sampler=enumerate(order, order.start),
        batch_size=None,
        num_workers=way.workers,
        prefetch_factor=way.prefetch or None,
        pin_memory=way.pinned,
        worker_init_fn=_leave_inherited_garbage,
        generator=torch.Generator(),  # it draws a seed of its workers: not from the generator that dropout draws from
    )
    batches = (_batch_or_raise(item) for item in loader)
    if way.overlapped:
        return _prefetched(batches, device)
    return ({name: column.to(device) for name, column in batch.items()} for batch in batches)


def once(dataset: Dataset, batch: int, device: torch.device) -> Iterator[Batch]:
    """Every item once, in order, for evaluation. The last batch may be smaller."""
    for begin in range(0, len(dataset), batch):
        rows = range(begin, min(begin + batch, len(dataset)))
        yield {name: column.to(device) for name, column in dataset[rows].items()}


def worker_count() -> int:
    """Worker processes for reading: one fewer than the usable cores, from 1 to 8, or what the environment says."""
    text = os.environ.get(WORKERS)
    if text is None:
        return max(1, min(8, usable_cores() - 1))
    if not re.fullmatch("[1-9][0-9]?", text):
        raise BadOption(f"{WORKERS} must be a number from 1 to 99, not {text[:40]!r}")
    return int(text)


def check_shared_memory(dataset: Dataset, batch: int, way: Feeding) -> None:
    """Refuses where the batches read ahead do not fit: a worker that finds no room there is killed, or waits for ever.

    Containers often have 64 MB of it.
    """
    try:
        free = shutil.disk_usage(SHARED_MEMORY).free
    except OSError:
        return  # no such folder: macOS has its shared memory elsewhere
    one = sum(column.nbytes for column in dataset[[0]].values())
    workers = way.workers
    needed = one * batch * (way.prefetch * workers + 1)
    if needed > free:
        lacking = f"{free / 1e6:,.0f} MB free, {needed / 1e6:,.0f} MB needed to read batches of {batch} ahead"
        fewer = f"set {WORKERS} below {workers}, " if workers > 1 else ""
        ways = f"enlarge it (docker run --shm-size), {fewer}or take a smaller --batch"
        raise DataError.at(SHARED_MEMORY, f"{lacking} in {workers} worker processes; {ways}")


def _leave_inherited_garbage(_: int) -> None:
    """A worker must not collect its parent's garbage: freeing a tensor on a GPU aborts a forked process."""
    gc.freeze()


class _ErrorsAsValues:
    """Returns a reader's error as a value: raised in a worker, its one line would be buried in a traceback."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __getitem__(self, numbered: tuple[int, Sequence[int]]) -> Batch | DataError:
        number, indices = numbered
        try:
            return self.dataset.drawn(indices, number)
        except DataError as error:
            return error


def _batch_or_raise(item: Batch | DataError) -> Batch:
    if isinstance(item, DataError):
        raise item
    return item


def _prefetched(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Copies the next pinned batch on a separate stream while the device computes on the current one."""
    copy_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy() -> Batch:
        host = next(batches)
        with torch.cuda.stream(copy_stream):
            return {name: column.to(device, non_blocking=True) for name, column in host.items()}

    following = copy()
    while True:
        compute = torch.cuda.current_stream(device)
        compute.wait_stream(copy_stream)
        current = following
        for column in current.values():
            column.record_stream(compute)  # the allocator must not reuse it before the compute stream is done with it
        following = copy()
        yield current


def folder_at(path: str | Path, expects: str) -> Path:
    """The data folder: the path as given, or below FATHOM_DATA; else an error that names the expected contents."""
    given = Path(path).expanduser()
    parent = os.environ.get("FATHOM_DATA")
    candidates = [given] + ([Path(parent).expanduser() / given] if parent and not given.is_absolute() else [])
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    tried = " or ".join(str(candidate) for candidate in candidates)
    problem = "is not a folder" if given.exists() else "no such folder"
    raise DataError.at(tried, f"{problem}; it must contain {expects}")
