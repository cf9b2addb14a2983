"""Conducting many runs before somebody's eyes: what is running, what is done, how long it will take."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from fathom.cli.terminal import count, progress_bar, seconds
from fathom.core.events import Progress as Told
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments import study


def conduct(specs: Sequence[RunSpec], store: Store, job: str) -> None:
    """A bar for the job and one for the run, and above them a line for each run that is done."""
    with progress_bar() as bar:
        whole = bar.add_task(job, total=len(specs))
        current = bar.add_task("")

        def watch(index: int, spec: RunSpec) -> Told:
            bar.update(whole, completed=index)
            bar.reset(current, description=f"{spec.workload} {spec.phase} on {spec.device}", total=None)
            return lambda done, total: bar.update(current, completed=done, total=total)

        def wait() -> None:
            bar.console.print(f"waiting for a turn: somebody else is measuring into {store.folder}", highlight=False)

        for number, (record, _) in enumerate(study.conduct(specs, store, watch, wait=wait), start=1):
            bar.console.print(f"{number:3} of {len(specs)}  {_line(record)}", highlight=False)


def _line(record: Record) -> str:
    spec = record.spec
    what = f"{spec.workload} {spec.phase} on {record.device}"
    what += f", {count(len(spec.cores), 'core')}" if spec.cores else ""
    what += f", {count(spec.threads, 'thread')}" if spec.threads else ""
    if record.outcome != "ok":
        return f"{what}: failed: {record.reason}"
    if record.program:
        return f"{what}: traced from beginning to end"
    return f"{what}: {seconds(statistics.median(record.step_s))} a step"
