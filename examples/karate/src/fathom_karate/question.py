"""per_node: how long one node takes, in training and in inference."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from fathom import Finding, Record
from fathom.analysis.finding import Table

TITLE = "Time per graph node"


def analyse(records: Sequence[Record]) -> Finding:
    """Of every timed run whose items are nodes."""
    runs = [record for record in records if record.item == "node" and record.step_s and record.items_per_step]
    rows = [[*_what(run), 1e6 * statistics.median(run.step_s) / (run.items_per_step or 1)] for run in runs]
    if not rows:
        return Finding(question="per_node", title=TITLE, summary="Not measured. Run `fathom run karate`.")
    table = Table(title="Microseconds a node", columns=["workload", "phase", "machine", "time (µs)"], rows=rows)
    return Finding(question="per_node", title=TITLE, summary=f"{len(rows)} runs on graphs.", tables=[table])


def _what(run: Record) -> list[str]:
    return [run.spec.workload, run.spec.phase, run.machine_label]
