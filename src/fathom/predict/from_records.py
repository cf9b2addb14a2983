"""A campaign and measured steps made of records: op rows are calls that were timed inside their steps.

Where a device has no calibration, its records can stand in: fewer shapes, but of the same device.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fathom.analysis.limits import data_share
from fathom.analysis.selection import profiled_step_s
from fathom.core.errors import DataError
from fathom.core.record import Record
from fathom.core.spec import EAGER
from fathom.predict.campaign import Campaign, TimedCall, source_of
from fathom.predict.other_batches import Case
from fathom.predict.probe import Probe
from fathom.trace.step_work import OpWork, StepWork, from_rows

MOST_DATA = 0.5  # of a step
DATA = "data"  # the phase of rows that feed the step: no part of a prediction


def usable(records: Iterable[Record], engine: str = EAGER, slow_host: bool = False) -> list[Record]:
    """Undisturbed profiled steps of an engine on one device, all its threads; where asked for, with a slow host too."""
    return [
        each
        for each in records
        if each.outcome == "ok" and each.profile is not None and each.profile.rows
        if not each.disturbed or (slow_host and has_slow_host(each))
        if each.spec.kind == "profiled" and each.spec.engine == engine and each.spec.ranks is None
        if each.spec.threads is None and each.spec.power_cap_w is None and each.spec.clock_cap_mhz is None
    ]


def has_slow_host(record: Record) -> bool:
    """Whether all that disturbed a run is that its host's core was slow, by a factor that is known.

    On a GPU, older records have its speed before and after the steps, which says nothing of a core that changes it.
    """
    seen = record.disturbance
    known = bool(seen.step_loops_s) if record.gpu is not None else seen.loop_s is not None
    return known and bool(seen.on_host) and not seen.by_others and record.disturbances == seen.on_host


def beside_steps_s(record: Record) -> float | None:
    """Of the fixed loop on the host's core: between the steps, in older records before and after them."""
    seen = record.disturbance
    return statistics.median(seen.step_loops_s) if seen.step_loops_s else seen.loop_s


def measured_s(record: Record) -> float:
    """The unprofiled step without the preparation of its batch; on a GPU as far as kernels do not run meanwhile."""
    profile = record.profile
    assert profile is not None
    step_s = profile.unprofiled_s or 0.0
    data_s = step_s * data_share(profile)
    if record.gpu is None:
        return step_s - data_s
    # data was prepared under the profiler, which slows that as it does the host's other work
    slowed = max(1.0, profiled_step_s(profile) / step_s) if step_s else 1.0
    return max(step_s - data_s / slowed, min(step_s, profile.op_s))


def is_mostly_data(record: Record) -> bool:
    """Whether a step on a GPU mostly prepares its batch: what is left of it is then mostly the error of that."""
    assert record.profile is not None
    return record.gpu is not None and measured_s(record) < MOST_DATA * (record.profile.unprofiled_s or 0.0)


def campaign_of(records: Iterable[Record]) -> Campaign:
    """Of the records of one device."""
    chosen = usable(records)
    labels = {each.machine_label for each in chosen}
    if len(labels) != 1:
        found = ", ".join(sorted(labels)) or "none"
        raise DataError(f"undisturbed profiled runs of one device are needed, with eager and one rank; found: {found}")
    calls: dict[str, TimedCall] = {}
    for record in chosen:
        for call in _calls(record):
            known = calls.get(call.work.spec)
            calls[call.work.spec] = call if known is None else replace(known, sources=known.sources + call.sources)
    rates: dict[str, float] = defaultdict(float)
    profiles = [(each.spec.precision or "fp32", each.profile) for each in chosen if each.profile]
    for precision, profile in profiles:
        rates[precision] = max(rates[precision], profile.ceiling_flop_per_s or 0.0)
    first = chosen[0]
    return Campaign(
        machine=first.machine_label,
        device=first.device,
        threads=None,
        torch="",
        started=first.started,
        flop_per_s={name: rate for name, rate in rates.items() if rate},
        bytes_per_s=max(profile.ceiling_bytes_per_s or 0.0 for _, profile in profiles),
        calls=list(calls.values()),
        probes=[_probe(each) for each in chosen],
    )


def case_of(record: Record) -> Case:
    """The step as its rows have it: only the predictor's error is in what comes of it."""
    profile = record.profile
    assert profile is not None
    rows = [(work, round(calls)) for work, calls, _ in _rows(record)]
    ops = tuple(replace(work, spec=_key(work)) for work, _ in rows)
    sequence = tuple(at for at, (_, calls) in enumerate(rows) for _ in range(calls))
    step = StepWork(
        workload=record.spec.workload,
        phase=record.spec.phase,
        precision=record.spec.precision or "fp32",
        batch=record.items_per_step or 1,
        item=record.item or "item",
        ops=ops,
        sequence=sequence,
        gpu=record.gpu is not None,
    )
    return Case(step, measured_s(record))


def _rows(record: Record) -> Sequence[tuple[OpWork, float, float]]:
    assert record.profile is not None
    return [each for each in from_rows(record.profile.rows) if each[0].part != DATA]


def _calls(record: Record) -> Iterable[TimedCall]:
    source = source_of(record.spec.workload, record.items_per_step or 1, record.spec.phase)
    for work, _, seconds in _rows(record):
        yield TimedCall(work=replace(work, spec=_key(work)), seconds=seconds, sources=(source,))


def _key(work: OpWork) -> str:
    return f"{work.op} {work.shapes} {work.dtypes} {work.part}"


def _probe(record: Record) -> Probe:
    counts: dict[str, int] = defaultdict(int)
    rows = _rows(record)
    for work, calls, _ in rows:
        counts[work.part] += round(calls)
    return Probe(
        name=f"{record.spec.workload}@{record.items_per_step}",
        phase=record.spec.phase,
        calls=dict(counts),
        ops_s=sum(calls * seconds for _, calls, seconds in rows),
        step_s=measured_s(record),
    )
