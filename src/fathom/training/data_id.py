"""data_id(spec): whether the data of a run are still those that it began with."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from fathom.core.spec import RunSpec
from fathom.core.store import LOCK
from fathom.data.base import folder_at
from fathom.training.checkpoint import FOLDER
from fathom.workloads.base import workload_class


def data_id(spec: RunSpec) -> str | None:
    """A hash of the names and sizes of all files in the data folder; None for synthetic data, and a game."""
    if spec.data is None:
        return None
    root = folder_at(spec.data, workload_class(spec.workload).expects)
    found = hashlib.sha256()
    for name, size in sorted((os.fsencode(path.relative_to(root)), path.stat().st_size) for path in _files(root)):
        found.update(b"%s\0%d\n" % (name, size))
    return found.hexdigest()[:12]


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
