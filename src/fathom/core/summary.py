"""A record in a few lines, as text or as a small HTML table: what ran where, its step time, its largest op types."""

from __future__ import annotations

import statistics
from html import escape
from typing import TYPE_CHECKING

from fathom.core.formatting import prefixed, seconds

if TYPE_CHECKING:
    from fathom.core.record import Profile, Record

SHOWN = 5  # op types


def facts(record: Record) -> list[tuple[str, str]]:
    """Names and values; what was not measured is left out."""
    found = [("device", _device(record))]
    if record.outcome != "ok":
        found.append(("failed", record.reason or "for a reason not known"))
    found += _step(record)
    if record.parameters:
        found.append(("parameters", f"{record.parameters:,}"))
    if record.learning and record.learning.quality is not None:
        found.append((record.learning.metric, f"{record.learning.quality:.4g} {record.learning.unit}".strip()))
    if record.profile:
        found += _ops(record.profile)
    if record.disturbed:
        found.append(("disturbed", "; ".join(record.disturbances)))
    return found + [("note", note) for note in record.notes]


def text(record: Record) -> str:
    rows = facts(record)
    width = max(len(name) for name, _ in rows)
    return "\n".join([title(record), *(f"  {name:{width}}  {value}" for name, value in rows)])


def html(record: Record) -> str:
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in facts(record)
    )
    return f'<table><caption style="text-align:left">{escape(title(record))}</caption>{cells}</table>'


def title(record: Record) -> str:
    spec = record.spec
    what = {"train": "training", "infer": "inference"}.get(spec.phase, spec.phase)
    return ", ".join(filter(None, (f"{spec.workload} {what}", spec.precision)))


def _device(record: Record) -> str:
    threads = record.spec.threads or record.machine.cpu.threads
    suffix = f", {threads} threads" if record.device == "cpu" and threads else ""
    return f"{record.machine_label} ({record.device}{suffix})"


def _step(record: Record) -> list[tuple[str, str]]:
    if not record.step_s:
        return []
    step_s, count = statistics.median(record.step_s), len(record.step_s)
    found = [("step time", f"{seconds(step_s)} (median of {count} step{'s' * (count != 1)})")]
    items = record.items_per_step
    if items and step_s > 0:
        word = record.item or "item"
        found.append(("throughput", f"{items / step_s:,.4g} {word}s/s at {items} per step"))
    return found


def _ops(profile: Profile) -> list[tuple[str, str]]:
    """Of the profiled step, as op rows and what is outside them add up to it."""
    by_type: dict[str, float] = {}
    for row in profile.rows:
        by_type[row.type] = by_type.get(row.type, 0.0) + profile.seconds(row)
    step_s = sum(by_type.values()) + profile.outside_s
    flop = [row.flop for row in profile.rows if row.flop is not None]
    found = [("work", f"{prefixed(sum(flop), 'FLOP')} per step")] if any(flop) else []
    if step_s <= 0:
        return found
    largest = sorted(by_type.items(), key=lambda pair: -pair[1])[:SHOWN]
    shares = [f"{name} {100 * part / step_s:.3g} %" for name, part in [*largest, ("outside ops", profile.outside_s)]]
    return [*found, ("profiled step", ", ".join(shares))]
