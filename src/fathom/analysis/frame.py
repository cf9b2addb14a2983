"""Records as pandas tables: one row per run, or one row per op of each profiled run.

    runs = frame(records)
    runs[runs.outcome == "ok"].groupby(["workload", "machine"]).step_median_s.min()
    op_frame(records).merge(runs[["id", "precision"]], on="id").groupby(["precision", "type"]).seconds.sum()

Columns have nullable types, the same for any records: what was not measured is missing (pandas.NA), never zero. pandas
is imported by the functions, so that a report that has no use for it does not wait for it.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fathom.analysis.labels import labelled
from fathom.analysis.step_time import settled_steps, throughput
from fathom.core.record import Record, Sections
from fathom.core.tables import COUNT, NUMBER, OP_COLUMNS, SWITCH, TEXT, TIME, op_rows, table

if TYPE_CHECKING:
    import pandas

RUN_COLUMNS = {  # of frame(), with their types
    "id": TEXT,
    "workload": TEXT,
    "phase": TEXT,
    "kind": TEXT,
    "preset": TEXT,
    "device": TEXT,  # that it ran on
    "machine": TEXT,  # the processor's label, as in reports; unique for each machine
    "precision": TEXT,
    "engine": TEXT,
    "batch": COUNT,  # missing: the preset's
    "threads": COUNT,  # intra-op threads that torch used
    "cores": COUNT,  # how many it was bound to; missing: not bound
    "ranks": COUNT,  # of a job of several workers, or one in such a series; missing: no such job
    "nodes": COUNT,
    "strategy": TEXT,
    "strategy_options": TEXT,  # changed ones, as JSON
    "scaling": TEXT,  # weak or strong
    "slow_rank": TEXT,  # what was injected: rank and factor, as JSON
    "slow_link": TEXT,
    "power_cap_w": NUMBER,
    "clock_cap_mhz": NUMBER,
    "source": TEXT,  # a workload, a user's model or step, or a trace
    "data": TEXT,  # missing: synthetic, or a user's own
    "seed": COUNT,
    "options": TEXT,  # changed fields of the workload, as JSON
    "outcome": TEXT,
    "reason": TEXT,
    "steps": COUNT,  # timed
    "step_median_s": NUMBER,  # of the timed steps after warm-up
    "item": TEXT,
    "items_per_step": COUNT,
    "items_per_s": NUMBER,
    "parameters": COUNT,
    "last_loss": NUMBER,
    "peak_host_bytes": COUNT,
    "peak_device_bytes": COUNT,
    **dict.fromkeys((field.name for field in dataclasses.fields(Sections)), NUMBER),
    "profiled": SWITCH,
    "profiler_slowdown": NUMBER,
    "quality": NUMBER,
    "target_reached": SWITCH,
    "training_s": NUMBER,
    "training_machines": COUNT,  # above 1, time and energy are those of none
    "energy_j": NUMBER,  # of a training run
    "step_energy_j": NUMBER,  # of a timed step; missing: not metered
    "mean_power_w": NUMBER,
    "energy_valid": SWITCH,
    "energy_estimated": SWITCH,
    "gpu_shared": SWITCH,
    "disturbed": SWITCH,  # missing: nobody looked, and nothing shows it
    "others_cpu": NUMBER,  # CPU-seconds per second of other processes
    "cpu_slowdown": NUMBER,  # of a fixed loop, against its fastest time on that machine
    "started": TIME,
    "spec": TEXT,  # its id: equal for equal work
    "commit": TEXT,
    "torch": TEXT,  # version
    "schema": COUNT,
}


def frame(records: Iterable[Record]) -> pandas.DataFrame:
    """One row per run, in the order of the records; the columns are RUN_COLUMNS."""
    return table([_run(record) for record in labelled(list(records))], RUN_COLUMNS)


def op_frame(records: Iterable[Record]) -> pandas.DataFrame:
    """One row per op row of each profiled run, values per step; the columns are OP_COLUMNS, `id` is the run's."""
    return table([row for record in labelled(list(records)) for row in op_rows(record)], OP_COLUMNS)


def _run(record: Record) -> dict[str, Any]:
    spec, machine, profile, learning = record.spec, record.machine, record.profile, record.learning
    step_s = statistics.median(settled_steps(record)) if record.step_s else None
    energy = record.energy
    return {
        **{name: getattr(spec, name) for name in ("workload", "phase", "kind", "preset", "precision", "engine")},
        **{name: getattr(spec, name) for name in ("batch", "source", "data", "seed", "ranks", "strategy", "scaling")},
        **{name: getattr(spec, name) for name in ("power_cap_w", "clock_cap_mhz")},
        **{name: _json(getattr(spec, name)) for name in ("options", "strategy_options", "slow_rank", "slow_link")},
        "nodes": spec.nodes if spec.ranks else None,
        **{name: getattr(record, name) for name in ("id", "device", "outcome", "reason", "item", "items_per_step")},
        **{name: getattr(record, name) for name in ("parameters", "peak_host_bytes", "peak_device_bytes", "started")},
        **dataclasses.asdict(record.sections),
        "machine": record.machine_label,
        "threads": spec.threads or machine.cpu.threads,
        "cores": len(spec.cores) if spec.cores else None,
        "steps": len(record.step_s),
        "step_median_s": step_s,
        "items_per_s": throughput([record]),
        "last_loss": record.losses[-1] if record.losses else None,
        "profiled": profile is not None,
        "profiler_slowdown": profile.slowdown if profile else None,
        "quality": learning.quality if learning else None,
        "target_reached": learning.reached if learning else None,
        "training_s": learning.seconds if learning else None,
        "training_machines": 1 + len(learning.earlier) if learning else None,
        "energy_j": learning.energy_j if learning else None,
        "step_energy_j": energy.per_step_j if energy else None,
        "mean_power_w": energy.mean_w if energy else None,
        "energy_valid": not energy.invalid if energy else None,
        "energy_estimated": energy.estimated if energy else None,
        "gpu_shared": record.disturbance.gpu_shared,
        "disturbed": record.disturbed or (False if record.disturbance.known else None),
        "others_cpu": record.disturbance.others_cpu,
        "cpu_slowdown": record.disturbance.cpu_slowdown,
        "spec": spec.id,
        "commit": machine.commit,
        "torch": machine.libraries.get("torch"),
        "schema": record.schema,
    }


def _json(value: Any) -> str | None:
    """Options and pairs; missing where there is nothing."""
    if not value:
        return None
    return json.dumps(dict(value) if isinstance(value, Mapping) else value, sort_keys=True)
