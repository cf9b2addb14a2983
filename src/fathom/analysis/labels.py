"""Names of machines: each has its own, also where two machines have the same processor.

Questions group and label runs by the processor's name. labelled() makes these names unique before records of several
machines meet, by the folder that the records of each are in, or by a number: "Neoverse-N1 (results/a), 2 cores".
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from fathom.core.formatting import listed
from fathom.core.record import Record

Runs = Mapping[Hashable, Sequence[Record]]  # of each processor


def labelled(records: Sequence[Record]) -> list[Record]:
    """The same records; CPUs and cards that have the same name and are not the same are renamed."""
    hosts: dict[Hashable, list[Record]] = defaultdict(list)
    cards: dict[Hashable, list[Record]] = defaultdict(list)
    for record in records:
        hosts[record.machine.identity].append(record)
        if record.gpu:
            cards[card(record)].append(record)
    cpu_names = _unique({host: runs[0].machine.cpu.name for host, runs in hosts.items()}, hosts, "machine")
    gpu_names = _unique({key: _gpu_name(runs[0]) for key, runs in cards.items()}, cards, "card")
    return [_renamed(record, cpu_names, gpu_names) for record in records]


def card(record: Record) -> Hashable:
    """Equal for runs on one card of one machine, and for runs on its CPU."""
    gpu = record.gpu
    return record.machine.identity, (gpu.uuid or gpu.name) if gpu else None


def _gpu_name(record: Record) -> str:
    return str(record.gpu.name) if record.gpu else ""


def _unique(names: Mapping[Hashable, str], runs: Runs, thing: str) -> dict[Hashable, str]:
    """New names for processors that share one: by the folders of their runs, by a number, or by both."""
    sharing: dict[str, list[Hashable]] = defaultdict(list)
    for key in sorted(names, key=lambda key: min(record.started for record in runs[key])):
        sharing[names[key]].append(key)
    unique: dict[Hashable, str] = {}
    for name, keys in sharing.items():
        if len(keys) > 1:
            tags = _tags([_folders(runs[key]) for key in keys], thing)
            unique |= {key: f"{name} ({tag})" for key, tag in zip(keys, tags, strict=True)}
    return unique


def _tags(folders: Sequence[str], thing: str) -> list[str]:
    counts, numbers, tags = Counter(folders), Counter[str](), []
    for folder in folders:
        numbers[folder] += 1
        number = f"{thing} {numbers[folder]}"
        tags.append(folder if counts[folder] == 1 else number if len(counts) == 1 else f"{folder}, {number}")
    return tags


def _folders(records: Sequence[Record]) -> str:
    return listed(sorted({record.origin or "no folder" for record in records}))


def _renamed(record: Record, cpu_names: Mapping[Hashable, str], gpu_names: Mapping[Hashable, str]) -> Record:
    machine, gpu = record.machine, record.gpu
    cpu_name, gpu_name = cpu_names.get(machine.identity), gpu_names.get(card(record)) if gpu else None
    if cpu_name is None and gpu_name is None:
        return record
    cpu = replace(machine.cpu, name=cpu_name or machine.cpu.name)
    gpus = [replace(each, name=gpu_name) if gpu_name and each is gpu else each for each in machine.gpus]
    return replace(record, machine=replace(machine, cpu=cpu, gpus=gpus))
