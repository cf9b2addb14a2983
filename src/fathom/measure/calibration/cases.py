"""Measured steps of records, with the op calls that the same steps have on the meta device."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable

from fathom.core.record import Record
from fathom.core.spec import EAGER
from fathom.engine.step_work import step_work
from fathom.predict.from_records import beside_steps_s, is_mostly_data, measured_s, usable
from fathom.predict.other_batches import Case
from fathom.workloads.base import workload_class


def cases_of(records: Iterable[Record], machine: str, engine: str = EAGER) -> list[Case]:
    """Of the steps that were measured on this machine; of several launches of a run, the median.

    Undisturbed ones; where a run has none, those that had a slow host. Steps that mostly prepare a batch are no cases.
    """
    launches: dict[str, list[Record]] = defaultdict(list)
    for record in usable(records, engine, slow_host=True):
        if record.machine_label == machine and record.spec.source == "workload" and not is_mostly_data(record):
            launches[record.spec.id].append(record)
    return [_case(same) for same in launches.values()]


def _case(launches: list[Record]) -> Case:
    launches = [each for each in launches if not each.disturbed] or launches
    first, spec = launches[0], launches[0].spec
    changes = dict(spec.options) | ({} if spec.batch is None else {"batch": spec.batch})
    workload = workload_class(spec.workload).configured(spec.preset, **changes)
    step = step_work(workload, spec.phase, spec.precision or "fp32", gpu=first.gpu is not None)
    loops = [loop_s for each in launches if (loop_s := beside_steps_s(each))]
    return Case(
        step,
        statistics.median(map(measured_s, launches)),
        spec.engine,
        statistics.median(loops) if loops else None,
        slow_host=first.disturbed,
    )
