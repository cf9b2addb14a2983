"""data_id(spec): whether the data of a run are still those that it began with."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from fathom.core.errors import BadOption
from fathom.core.spec import RunSpec
from fathom.core.store import LOCK
from fathom.data.base import folder_at
from fathom.training.checkpoint import FOLDER
from fathom.workloads.base import workload_class


def data_id(spec: RunSpec) -> str | None:
    """A hash of the names and sizes of all files in the data folder; None for synthetic data, and a game."""
    if spec.data is None:
        return None
    root = _folder(spec)
    found = hashlib.sha256()
    for name, size in sorted((os.fsencode(path.relative_to(root)), path.stat().st_size) for path in _files(root)):
        found.update(b"%s\0%d\n" % (name, size))
    return found.hexdigest()[:12]


def check_apart(spec: RunSpec, out: Path) -> None:
    """Refuses a folder of records that is that of the data: a record in it would make them other data."""
    if spec.data is not None and _folder(spec).resolve() == out.resolve():
        raise BadOption(f"--out is the folder of the data, {spec.data}: records need one of their own")


def _folder(spec: RunSpec) -> Path:
    assert spec.data is not None
    return folder_at(spec.data, workload_class(spec.workload).expects)


def _files(root: Path) -> Iterator[Path]:
    """But for what this run writes itself, if that is below its data."""
    checkpoints = os.environ.get(FOLDER)
    for name, below, files in os.walk(root):
        folder = Path(name)
        of_records = folder != root and any(each.startswith(LOCK) for each in files)
        if of_records or (checkpoints and folder == Path(checkpoints)):
            below.clear()
        else:
            yield from (path for each in files if (path := folder / each).is_file())
