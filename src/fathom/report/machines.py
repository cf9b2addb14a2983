"""The machines that records come from, as facts to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fathom.core import fingerprint, formatting
from fathom.core.fingerprint import THROTTLES, Cpu, Gpu
from fathom.core.record import Record


@dataclass(frozen=True, kw_only=True)
class Machine:
    name: str
    facts: list[tuple[str, str]]


def machines(records: Sequence[Record]) -> list[Machine]:
    """One for each distinct machine; a fact that changed between runs (threads, clocks) lists all its values."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(record.machine.identity, []).append(record)
    return [_machine(group) for group in groups.values()]


def _machine(records: list[Record]) -> Machine:
    seen = [record.machine for record in records]
    cpus = [machine.cpu for machine in seen]
    cards = max((machine.gpus for machine in seen), key=len)
    cards_over_time = [card for machine in seen for card in machine.gpus]
    name = cpus[0].name or "unknown processor"
    if cards:
        name += " with " + formatting.several(_cards(cards))
    facts = [
        ("Processor", _cpu(cpus[0])),
        ("Intra-op threads", formatting.several(cpu.threads for cpu in cpus)),
        ("Clock governor", formatting.several(cpu.governor for cpu in cpus)),
        ("SMT", formatting.several(cpu.smt for cpu in cpus if cpu.smt != "-1")),
        ("Memory", formatting.size(seen[0].memory_bytes) if seen[0].memory_bytes else ""),
        ("Accelerators", formatting.several(_cards(cards)) if cards else "none used"),
        *_gpu_facts(cards_over_time),
        ("System", formatting.several(machine.system for machine in seen)),
        ("Software", formatting.several(_software(machine) for machine in seen)),
        ("Fathom commit", formatting.several(machine.commit for machine in seen)),
        ("Runs", f"{len(records)}, {_period(records)}"),
    ]
    return Machine(name=name, facts=[(label, text or formatting.DASH) for label, text in facts])


def _cpu(cpu: Cpu) -> str:
    logical, physical, affinity = cpu.logical_cores, cpu.physical_cores, cpu.affinity
    parts = [cpu.name]
    if logical:
        parts.append(f"{logical} logical cores" + (f" on {physical} physical" if physical else ""))
    if affinity and logical and len(affinity) < logical:
        parts.append(f"{len(affinity)} of them available to the process")
    if cpu.quota_cores:
        parts.append(f"CPU quota of {cpu.quota_cores:g} cores")
    if cpu.clock_mhz:
        parts.append(f"{cpu.clock_mhz:.0f} MHz at the end of a run")
    return ", ".join(part for part in parts if part)


def _cards(cards: Sequence[Gpu]) -> list[str]:
    names = [str(card.name) for card in cards]
    return [name if names.count(name) == 1 else f"{names.count(name)} × {name}" for name in names]


def _gpu_facts(cards: Sequence[Gpu]) -> list[tuple[str, str]]:
    """The driver's readings of the cards over all runs; nothing where there are none."""

    def over_runs(key: str, unit: str) -> str:
        values = [value for card in cards if (value := getattr(card, key)) is not None]
        return formatting.span(values, unit) if values else ""

    if not cards:
        return []
    memory = formatting.several(formatting.size(card.memory_bytes) for card in cards if card.memory_bytes)
    clock, most = over_runs("sm_clock_mhz", " MHz"), over_runs("sm_clock_max_mhz", " MHz")
    return [
        ("Accelerator memory", memory),
        ("Driver", formatting.several(card.driver for card in cards)),
        ("Clock", f"{clock} at the end of a run, {most} at most" if clock and most else clock),
        ("Power limit", over_runs("power_limit_w", " W")),
        ("Temperature", over_runs("temperature_c", " °C")),
        ("Throttling", _throttles(card.throttle_reasons for card in cards)),
    ]


def _throttles(masks: Any) -> str:
    known = [mask for mask in masks if mask is not None]
    reasons = [word for bit, word in THROTTLES.items() if any(mask & bit for mask in known)]
    return ", ".join(reasons) or ("none" if known else "")


def _software(machine: fingerprint.Machine) -> str:
    versions = {"Python": machine.python} | machine.libraries
    return " · ".join(f"{name} {version}" for name, version in versions.items() if version)


def _period(records: Sequence[Record]) -> str:
    started = sorted(record.started for record in records)
    first, last = formatting.moment(started[0]), formatting.moment(started[-1])
    return first if first == last else f"{first} to {last}"
