"""The machines that records come from, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fathom.core.record import Record
from fathom.report import words

THROTTLES = {  # the bits of NVML's clock event reasons
    0x1: "idle",
    0x2: "application clocks setting",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks setting",
}


@dataclass(frozen=True, kw_only=True)
class Machine:
    name: str
    facts: list[tuple[str, str]]


def machines(records: Sequence[Record]) -> list[Machine]:
    """One for each distinct machine; what changed between its runs (threads, clocks) is told as all its values."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        machine = record.machine
        cpu = machine.get("cpu") or {}
        key = (cpu.get("name"), cpu.get("logical_cores"), machine.get("memory_bytes"), machine.get("system"))
        groups.setdefault(key, []).append(record)
    return [_machine(group) for group in groups.values()]


def _machine(records: list[Record]) -> Machine:
    seen = [record.machine for record in records]
    cpus = [machine.get("cpu") or {} for machine in seen]
    cards = max((machine.get("gpus") or [] for machine in seen), key=len)
    cards_over_time = [card for machine in seen for card in machine.get("gpus") or []]
    name = str(cpus[0].get("name") or "unknown processor")
    if cards:
        name += " with " + words.several(_cards(cards))
    facts = [
        ("Processor", _cpu(cpus[0])),
        ("Threads of an operation", words.several(cpu.get("threads") for cpu in cpus)),
        ("Clock governor", words.several(cpu.get("governor") for cpu in cpus)),
        ("Simultaneous threads", words.several(cpu.get("smt") for cpu in cpus if cpu.get("smt") != "-1")),
        ("Memory", words.size(seen[0]["memory_bytes"]) if seen[0].get("memory_bytes") else ""),
        ("Accelerators", words.several(_cards(cards)) if cards else "none used"),
        *_gpu_facts(cards_over_time),
        ("System", words.several(machine.get("system") for machine in seen)),
        ("Software", words.several(_software(machine) for machine in seen)),
        ("Fathom commit", words.several(machine.get("commit") for machine in seen)),
        ("Runs", f"{len(records)}, {_period(records)}"),
    ]
    return Machine(name=name, facts=[(label, text or words.DASH) for label, text in facts])


def _cpu(cpu: Mapping[str, Any]) -> str:
    logical, physical, affinity = (cpu.get(key) for key in ("logical_cores", "physical_cores", "affinity"))
    parts = [str(cpu.get("name") or "")]
    if logical:
        parts.append(f"{logical} logical cores" + (f" on {physical} physical" if physical else ""))
    if affinity and logical and len(affinity) < logical:
        parts.append(f"{len(affinity)} of them allowed to this program")
    if cpu.get("clock_mhz"):
        parts.append(f"{cpu['clock_mhz']:.0f} MHz when asked")
    return ", ".join(part for part in parts if part)


def _cards(cards: Sequence[Mapping[str, Any]]) -> list[str]:
    names = [str(card.get("name")) for card in cards]
    return [name if names.count(name) == 1 else f"{names.count(name)} × {name}" for name in names]


def _gpu_facts(cards: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What the driver said of the cards, over all runs; nothing where there are none."""

    def over_runs(key: str, unit: str) -> str:
        values = [card[key] for card in cards if card.get(key) is not None]
        return words.span(values, unit) if values else ""

    if not cards:
        return []
    memory = words.several(words.size(card["memory_bytes"]) for card in cards if card.get("memory_bytes"))
    clock, most = over_runs("sm_clock_mhz", " MHz"), over_runs("sm_clock_max_mhz", " MHz")
    return [
        ("Accelerator memory", memory),
        ("Driver", words.several(card.get("driver") for card in cards)),
        ("Clock", f"{clock} when asked, {most} at most" if clock and most else clock),
        ("Power limit", over_runs("power_limit_w", " W")),
        ("Temperature", over_runs("temperature_c", " °C")),
        ("Clock held back by", _throttles(card.get("throttle_reasons") for card in cards)),
    ]


def _throttles(masks: Any) -> str:
    known = [mask for mask in masks if mask is not None]
    reasons = [word for bit, word in THROTTLES.items() if any(mask & bit for mask in known)]
    return ", ".join(reasons) or ("nothing" if known else "")


def _software(machine: Mapping[str, Any]) -> str:
    versions = {"Python": machine.get("python")} | dict(machine.get("libraries") or {})
    return " · ".join(f"{name} {version}" for name, version in versions.items() if version)


def _period(records: Sequence[Record]) -> str:
    started = sorted(record.started for record in records)
    first, last = words.moment(started[0]), words.moment(started[-1])
    return first if first == last else f"{first} to {last}"
