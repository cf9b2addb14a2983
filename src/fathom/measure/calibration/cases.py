"""Measured steps of records, with the op calls that the same steps have on the meta device."""

from __future__ import annotations

from collections.abc import Iterable

from fathom.core.record import Record
from fathom.engine.step_work import step_work
from fathom.predict.from_records import measured_s, usable
from fathom.predict.other_batches import Case
from fathom.workloads.base import workload_class


def cases_of(records: Iterable[Record], machine: str) -> list[Case]:
    """Of the undisturbed steps that were measured on this machine."""
    found = []
    for record in usable(records):
        spec = record.spec
        if record.machine_label != machine or spec.source != "workload":
            continue
        changes = dict(spec.options) | ({} if spec.batch is None else {"batch": spec.batch})
        workload = workload_class(spec.workload).configured(spec.preset, **changes)
        step = step_work(workload, spec.phase, spec.precision or "fp32", gpu=record.gpu is not None)
        found.append(Case(step, measured_s(record)))
    return found
