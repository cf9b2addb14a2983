"""data_id(spec): whether the data of a run are still those that it began with."""

from __future__ import annotations

import hashlib
import os

from fathom.core.spec import RunSpec
from fathom.data.base import folder_at
from fathom.workloads.base import workload_class


def data_id(spec: RunSpec) -> str | None:
    """A hash of the names and sizes of all files in the data folder; None for synthetic data, and a game."""
    if spec.data is None:
        return None
    root = folder_at(spec.data, workload_class(spec.workload).expects)
    files = [path for path in root.rglob("*") if path.is_file()]
    found = hashlib.sha256()
    for name, size in sorted((os.fsencode(path.relative_to(root)), path.stat().st_size) for path in files):
        found.update(b"%s\0%d\n" % (name, size))
    return found.hexdigest()[:12]
