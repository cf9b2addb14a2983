"""A folder of framework records, each written once and whole; it may be a folder of other records, too."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from fathom.core.errors import BadOption, DataError
from fathom.core.files import read_bytes, replace_whole
from fathom.core.fingerprint import Machine
from fathom.core.framework import FrameworkRecord, FrameworkSpec
from fathom.core.store import FRAMEWORK_SUFFIX, MOST_BYTES

LONGEST_STEM = 150  # characters: file systems allow 255 in the whole name of a file


def add(folder: Path, record: FrameworkRecord) -> Path:
    spec = record.spec
    words = (spec.network, spec.framework, spec.phase, str(spec.threads), record.id)
    stem = re.sub(r"[^A-Za-z0-9_.-]+", ".", "-".join(words))[
        -LONGEST_STEM:
    ]  # package.module:Class has other characters
    path = folder / f"{stem}{FRAMEWORK_SUFFIX}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_whole(path, json.dumps(record.to_json(), indent=1))
    except OSError as error:
        raise BadOption(f"cannot write {path}: {error.strerror or error}") from None
    return path


def read(paths: Iterable[Path], on_unreadable: Callable[[str], None]) -> list[FrameworkRecord]:
    """The framework records of these folders and files, oldest first; one line for each that cannot be read."""
    found = {}
    for path in paths:
        for file in _files(path):
            try:
                record = FrameworkRecord.from_json(json.loads(read_bytes(file, MOST_BYTES)), str(file))
                found[record.id] = record
            except DataError as error:
                on_unreadable(str(error))
            except (ValueError, RecursionError) as error:
                on_unreadable(f"{file}: not readable as JSON: {error}")
    return sorted(found.values(), key=lambda record: record.started)


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from sorted(path.glob(f"*{FRAMEWORK_SUFFIX}"))
    elif path.name.endswith(FRAMEWORK_SUFFIX):
        yield path


def remaining(
    planned: Sequence[FrameworkSpec], records: Iterable[FrameworkRecord], machine: Machine
) -> list[FrameworkSpec]:
    """The planned cells without a record of this machine, in order; failed ones are tried again, wrong ones are not.

    Disturbed ones are run again, but no cell more than twice as often as it was planned: a busy machine stays busy.
    """
    disturbed: dict[str, list[bool]] = defaultdict(list)
    for record in records:
        if record.outcome in ("ok", "wrong") and record.machine.identity == machine.identity:
            disturbed[record.spec.id].append(record.disturbed)
    wanted = Counter(spec.id for spec in planned)
    done = {each: max(disturbed[each].count(False), len(disturbed[each]) - many) for each, many in wanted.items()}
    missing = []
    for spec in planned:
        if done[spec.id] > 0:
            done[spec.id] -= 1
        else:
            missing.append(spec)
    return missing
