"""The traces of all ranks of one run, from a folder: one record for each rank, in the order of ranks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import psutil

from fathom.core.errors import DataError, FathomError
from fathom.core.record import Profile, Record
from fathom.trace.profile import from_trace

RANK = re.compile(r"(?:rank|worker)[_.-]?(\d+)", re.IGNORECASE)
COMPRESSION = 20  # a gzipped trace's JSON is up to so many times as large
MEMORY = 3  # bytes of memory that reading takes at most for a byte of JSON
SHARE = 0.5  # of the free memory that reading may take
WORTH_BYTES = 100e6  # of JSON in all: below, processes take longer to start than they save


def trace_files(folder: Path) -> list[Path]:
    """The JSON files of a folder, gzipped or not, by name."""
    return sorted(path for path in folder.iterdir() if path.name.endswith((".json", ".json.gz")) and path.is_file())


def from_traces(folder: Path, on_unreadable: Callable[[str], None], processes: int = 1) -> list[Record]:
    """One record for each rank. Files that are no traces are skipped: on_unreadable gets one line for each.

    processes is how many read at once; processes_for(folder) says how many help and fit into memory.
    """
    paths = trace_files(folder)
    if not paths:
        raise DataError.at(folder, "no traces (.json, .json.gz)")
    found: list[tuple[Path, Record]] = []
    problems: list[str] = []
    for path, result in zip(paths, _read_all(paths, processes), strict=True):
        if isinstance(result, str):
            problems.append(result)
        else:
            found.append((path, _with_rank(result, path)))
    if not found:
        raise DataError(problems[0])
    for problem in problems:
        on_unreadable(problem)
    _check(found)
    return sorted((record for _, record in found), key=lambda record: rank_of(record) or 0)


def rank_of(record: Record) -> int | None:
    """The rank that a trace's record is of; None where nothing tells."""
    depth = record.profile.depth if record.profile else None
    return depth.rank if depth else None


def processes_for(folder: Path) -> int:
    """How many processes read a folder's traces fastest without filling the memory."""
    sizes = [path.stat().st_size * (COMPRESSION if path.suffix == ".gz" else 1) for path in trace_files(folder)]
    if sum(sizes) < WORTH_BYTES:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    fitting = int(SHARE * psutil.virtual_memory().available / (MEMORY * max(sizes)))
    return max(1, min(cores, len(sizes), fitting))


def _read_all(paths: Sequence[Path], processes: int) -> Iterator[Record | str]:
    if processes == 1:
        yield from map(_read, paths)
        return
    # spawned, not forked: whatever the calling process holds, threads and memory, stays out of them
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_read, paths)


def _read(path: Path) -> Record | str:
    """The record, or in one line why there is none: an error does not cross processes as well as text."""
    try:
        return from_trace(path)
    except FathomError as error:
        return str(error)


def _with_rank(record: Record, path: Path) -> Record:
    """With the rank that its file name has, where the trace itself does not tell."""
    profile = record.profile
    match = RANK.search(path.name)
    if profile is None or profile.depth is None or profile.depth.rank is not None or match is None:
        return record
    named: Profile = replace(profile, depth=replace(profile.depth, rank=int(match[1])))
    return replace(record, profile=named)


def _check(found: Sequence[tuple[Path, Record]]) -> None:
    """All files must be ranks of one run."""
    seen: dict[int, Path] = {}
    sizes: dict[int, Path] = {}
    for path, record in found:
        rank = rank_of(record)
        if rank is None:
            raise DataError.at(path, "no rank, neither in the trace (distributedInfo) nor in the file name (rank0)")
        if rank in seen:
            raise DataError(f"{seen[rank]} and {path} are both of rank {rank}: give a folder with one trace per rank")
        seen[rank] = path
        size = record.profile.depth.world_size if record.profile and record.profile.depth else None
        if size is not None:
            sizes[size] = path
    if len(sizes) > 1:
        those = " and ".join(f"{path} is of {size} ranks" for size, path in sizes.items())
        raise DataError(f"traces of different runs: {those}")
