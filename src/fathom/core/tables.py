"""Rows as pandas tables with nullable types, and the op rows of a record as such rows.

pandas is imported by the function, so that what has no use for it does not wait for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

    from fathom.core.record import Record

TEXT, COUNT, NUMBER, SWITCH, TIME = "string", "Int64", "Float64", "boolean", "datetime64[ns, UTC]"
OP_COLUMNS = {  # of Record.frame() and op_frame(): the run, the fields of its op rows, and the time that counts
    "id": TEXT,
    "workload": TEXT,
    "phase": TEXT,
    "machine": TEXT,
    "op": TEXT,
    "type": TEXT,
    "group": TEXT,
    "layer": TEXT,
    "role": TEXT,
    "op_phase": TEXT,  # OpRow.phase: forward, backward, optimizer, data or other; `phase` is the run's, as in frame()
    "shapes": TEXT,
    "dtypes": TEXT,
    "calls": NUMBER,
    "cpu_s": NUMBER,
    "device_s": NUMBER,
    "kernel_s": NUMBER,
    "flop": NUMBER,
    "bytes": NUMBER,
    "seconds": NUMBER,  # per step: the device's time where there is one, else the CPU's
}


def table(rows: list[dict[str, Any]], columns: Mapping[str, str]) -> pandas.DataFrame:
    """What is None is missing (pandas.NA), never zero."""
    import pandas

    made = pandas.DataFrame(rows, columns=list(columns), dtype=object)
    for name, kind in columns.items():
        if kind == TIME:
            made[name] = pandas.to_datetime(made[name], utc=True, format="ISO8601", errors="coerce")
    return made.astype(dict(columns))


def op_rows(record: Record) -> list[dict[str, Any]]:
    """The op rows of a profiled run, with what tells the run; none of another."""
    if record.profile is None:
        return []
    spec = record.spec
    run = {"id": record.id, "workload": spec.workload, "machine": record.machine_label}
    rows = []
    for row in record.profile.rows:
        own = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
        rows.append({**own, **run, "op_phase": row.phase, "phase": spec.phase, "seconds": record.profile.seconds(row)})
    return rows
