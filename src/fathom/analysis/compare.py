"""Two sets of records compared: the ratio of B's step time to A's, and which ops explain the difference.

A change is significant when the ratio's interval excludes 1 and the ratio is beyond the noise of launches (ratio.py).
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

from fathom.analysis.explained_change import Change, explanation, slowdown
from fathom.analysis.labels import card
from fathom.analysis.ratio import FEW, launches_needed, ratio
from fathom.analysis.selection import configuration, trusted, workload_order
from fathom.analysis.step_time import levels, settled_steps
from fathom.core.formatting import seconds
from fathom.core.record import Record
from fathom.core.spec import RunSpec

Verdict = Literal["faster", "slower", "no change", "not comparable"]
Key = tuple[str, str]  # a configuration's id, and a kind of device
CHOICES = (
    "preset",
    "precision",
    "engine",
    "batch",
    "threads",
    "cores",
    "data",
    "feeding",
    "ranks",
    "nodes",
    "strategy",
    "scaling",
    "slow_rank",
    "slow_link",
    "power_cap_w",
    "clock_cap_mhz",
)  # fields of a spec that say how the work is done
_SHOWN = {
    "slow_rank": "slow rank",
    "slow_link": "slow link",
    "power_cap_w": "power cap (W)",
    "clock_cap_mhz": "clock cap (MHz)",
}  # of these, names that are not words
AUTO = "auto"  # the device of a run that failed before it had one


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One workload in one phase and setting. Ratios are B over A; fractions are of A."""

    workload: str
    phase: str
    device: str
    setting: str  # what is not as by default, or differs between the sides; "" where nothing is
    launches_a: int  # that ran
    launches_b: int
    failed_a: int  # launches beside those
    failed_b: int
    verdict: Verdict
    step_a_s: float | None = None
    step_b_s: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    detectable: float | None = None  # the smallest change that would have been significant
    launches_needed: int | None = None  # per side, for a change of the size asked for to be significant; None: enough
    paired: bool = False  # interleaved, so that a drift of the machine cancels
    broke: bool = False  # it fails in B, where it did not in A
    remark: str = ""  # why it is not comparable, or what to know of the comparison
    explanation: list[Change] = field(default_factory=list)
    slowdowns: tuple[float | None, float | None] = (None, None)  # of a profiled step in A and in B, a factor
    several_devices: bool = False  # the same was compared on another device, too: its name says which one this is

    @property
    def name(self) -> str:
        where = f" on {self.device}" if self.several_devices else ""
        return f"{self.workload} {self.phase}{where}" + (f" ({self.setting})" if self.setting else "")

    @property
    def unexplained(self) -> bool:
        """The profiled steps do not differ as the timed ones do."""
        return any(change.share is None for change in self.explanation)

    def regressed(self, beyond: float) -> bool:
        return self.broke or (self.verdict == "slower" and self.ratio is not None and self.ratio > 1 + beyond)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Runs:
    """The launches of one configuration on one kind of device, of one side; oldest first."""

    good: list[Record] = field(default_factory=list)
    failed: list[Record] = field(default_factory=list)

    @property
    def all(self) -> list[Record]:
        return self.good + self.failed

    def failure(self, side: str) -> Iterator[str]:
        """How many of the launches failed, and why the last one did."""
        if self.failed:
            many = "" if len(self.all) == 1 else f", {len(self.failed)} of {len(self.all)} launches"
            yield f"failed in {side}{many}: {self.failed[-1].reason or 'no reason given'}"


def compare(
    a: Sequence[Record], b: Sequence[Record], change: float = 0.05, *, one_setting: bool = False
) -> list[Comparison]:
    """Each configuration of either set; `change` is the size of change that launches_needed is computed for.

    The same configuration is compared wherever it ran. What is left of a workload is compared too if it is one
    configuration on each side: two settings of the same work. A failure counts against the same configuration alone,
    unless either set is known to be of one setting: then it counts against the other set's.
    """
    ours, theirs = _groups(a), _groups(b)
    _assign_devices(ours, theirs)
    _assign_devices(theirs, ours)
    found = [
        _compared(one, other, change) if one.good and other.good else _not_compared(one, other)
        for one, other in _matched(ours, theirs, one_setting)
    ]
    names = Counter(each.name for each in found)
    found = [replace(each, several_devices=names[each.name] > 1) for each in found]
    return sorted(found, key=lambda each: (workload_order(each.workload), each.phase != "train", each.device))


def geometric_mean(comparisons: Iterable[Comparison]) -> float | None:
    ratios = [each.ratio for each in comparisons if each.ratio is not None]
    return statistics.geometric_mean(ratios) if ratios else None


def in_common(comparisons: Iterable[Comparison]) -> bool:
    """Whether the two sets have any work in common."""
    return any(each.broke or (each.launches_a and each.launches_b) for each in comparisons)


def described(record: Record) -> str:
    """All that must agree for two records of one workload to be compared, as text."""
    changed = _setting(replace(record, spec=replace(record.spec, preset=RunSpec(workload="").preset)))
    return ", ".join(filter(None, (record.spec.phase, record.spec.preset, record.device, changed)))


def _groups(records: Iterable[Record]) -> dict[Key, Runs]:
    """Runs with steps and runs that failed, by configuration and kind of device."""
    groups: dict[Key, Runs] = defaultdict(Runs)
    for record in sorted(records, key=lambda record: record.started):
        if record.spec.kind == "feed":
            continue  # its steps wait for their input
        key = configuration(record).id, _kind(record)
        if record.outcome == "ok" and record.step_s:
            groups[key].good.append(record)
        elif record.outcome != "ok" and record.spec.kind not in ("program", "training", "trial"):
            groups[key].failed.append(record)
    return groups


def _assign_devices(groups: dict[Key, Runs], others: dict[Key, Runs]) -> None:
    """A run that failed before it had a device counts where its configuration ran: on this side, or else the other."""
    for configured, _ in [key for key in groups if key[1] == AUTO]:
        kinds = [[kind for known, kind in lot if known == configured and kind != AUTO] for lot in (groups, others)]
        if devices := kinds[0] or kinds[1]:
            kind = min(devices, key=lambda kind: kind == "cpu")  # auto takes an accelerator where there is one
            failed = groups.pop((configured, AUTO)).failed
            groups[configured, kind].failed.extend(failed)
            groups[configured, kind].failed.sort(key=lambda record: record.started)


def _kind(record: Record) -> str:
    return record.device.partition(":")[0]


def _work(runs: Runs) -> tuple[object, ...]:
    spec = runs.all[0].spec
    return spec.workload, spec.phase, spec.preset, spec.data


def _matched(a: dict[Key, Runs], b: dict[Key, Runs], one_setting: bool) -> Iterator[tuple[Runs, Runs]]:
    """Groups of the same key; then, of the same work, the only ones left on either side; the rest alone."""
    yield from ((a[key], b[key]) for key in a if key in b)
    left: dict[tuple[object, ...], tuple[list[Runs], list[Runs]]] = defaultdict(lambda: ([], []))
    for side, (ours, theirs) in enumerate(((a, b), (b, a))):
        for key, runs in ours.items():
            if key not in theirs:
                work = _work(runs) if runs.good or one_setting else key  # a failure at 1 thread is none at 4
                left[work][side].append(runs)
    for ones, others in left.values():
        if len(ones) == len(others) == 1:
            yield ones[0], others[0]
        else:
            yield from ((runs, Runs()) for runs in ones)
            yield from ((Runs(), runs) for runs in others)


def _not_compared(a: Runs, b: Runs) -> Comparison:
    remarks = [*a.failure("A"), *b.failure("B")]
    if not (a.all and b.all):
        here, there = ("A", "B") if a.all else ("B", "A")
        remarks.append(f"not in {there}" if remarks else f"only in {here}")
    return Comparison(
        verdict="not comparable",
        step_a_s=_middle(_steps(a.good)),
        step_b_s=_middle(_steps(b.good)),
        remark="; ".join(remarks),
        **_facts(a, b),
    )


def _compared(one: Runs, other: Runs, change: float) -> Comparison:
    if not _interleaved(one.good, other.good):  # of pairs, both launches count or neither
        one, other = (replace(side, good=trusted(side.good)) for side in (one, other))
    a, b, facts = one.good, other.good, _facts(one, other)
    items_a, items_b = a[0].items_per_step, b[0].items_per_step
    same = items_a == items_b
    if mixed := [*_several_machines(a, "A"), *_several_machines(b, "B")]:
        return Comparison(verdict="not comparable", remark="; ".join(mixed), **facts)
    if not same and not (items_a and items_b):
        unknown = ["items per step not recorded", *one.failure("A"), *other.failure("B")]
        return Comparison(verdict="not comparable", remark="; ".join(unknown), **facts)
    steps_a, steps_b = _steps(a), _steps(b)
    paired = _interleaved(a, b)
    found = ratio(_per(items_a, steps_a), _per(items_b, steps_b), paired=paired)
    verdict: Verdict = "no change" if not found.significant else "slower" if found.value > 1 else "faster"
    return Comparison(
        verdict=verdict,
        step_a_s=_middle(steps_a),
        step_b_s=_middle(steps_b),
        ratio=found.value,
        low=found.low,
        high=found.high,
        detectable=found.detectable,
        launches_needed=launches_needed(found, min(len(a), len(b)), change),
        paired=paired,
        remark="; ".join([*one.failure("A"), *other.failure("B"), *_remarks(a, b)]),
        explanation=explanation(a, b, found.value) if same else [],
        slowdowns=(slowdown(a), slowdown(b)),
        **facts,
    )


def _several_machines(runs: Sequence[Record], side: str) -> Iterator[str]:
    """Launches of two machines, or cards, have no common median: it would be a time that neither measured."""
    if (many := len({run.machine.identity for run in runs})) > 1:
        yield f"{side} has runs of {many} machines: compare folders of one machine each"
    elif (many := len({card(run) for run in runs})) > 1:
        yield f"{side} has runs of {many} GPUs: compare folders of one GPU each"


def _facts(a: Runs, b: Runs) -> dict[str, Any]:
    """The fields of a comparison with or without a ratio; a side may have no runs."""
    one, other = (a.all or b.all)[0], (b.all or a.all)[0]
    return {
        "workload": one.spec.workload,
        "phase": one.spec.phase,
        "device": _device(one, other),
        "setting": _setting(one) if configuration(one) == configuration(other) else _differing(one, other),
        "launches_a": len(a.good),
        "launches_b": len(b.good),
        "failed_a": len(a.failed),
        "failed_b": len(b.failed),
        "broke": bool(a.good and b.failed and not (a.failed and b.good)),
    }


def _device(a: Record, b: Record) -> str:
    if _kind(a) == _kind(b) or _kind(b) == AUTO:
        return a.device
    return b.device if _kind(a) == AUTO else _either(a.device, b.device)


def _steps(runs: Sequence[Record]) -> list[list[float]]:
    return [settled_steps(run) for run in runs]


def _middle(launches: list[list[float]]) -> float | None:
    """The step time: the median of the launches' medians."""
    return statistics.median(map(statistics.median, launches)) if launches else None


def _per(items: int | None, launches: list[list[float]]) -> list[list[float]]:
    """Per item, so that steps of different sizes can be compared; of equal ones the ratio is the same."""
    return [[step_s / (items or 1) for step_s in steps] for steps in launches]


def _interleaved(a: Sequence[Record], b: Sequence[Record]) -> bool:
    """One launch of each side before the next of either."""
    if len(a) != len(b) or len(a) < 2 or _shared(a, b):
        return False
    pairs = [(one.started, other.started) for one, other in zip(a, b, strict=True)]
    return all(max(now) < min(then) for now, then in pairwise(pairs))


def _shared(a: Sequence[Record], b: Sequence[Record]) -> int:
    return len({run.id for run in a} & {run.id for run in b})


def _remarks(a: Sequence[Record], b: Sequence[Record]) -> Iterator[str]:
    if shared := _shared(a, b):
        whole = shared == len(a) == len(b)
        yield "the same records on both sides" if whole else f"{shared} records are on both sides"
    if min(len(a), len(b)) == 1:
        yield "one launch on a side: the variation between launches is assumed, in the interval too"
    elif min(len(a), len(b)) < FEW:
        yield f"fewer than {FEW} launches on a side: the variation between launches is assumed, not measured"
    if unsteady := [*_unsteady(a, "A"), *_unsteady(b, "B")]:
        yield f"unsteady, so that all timed steps count: {', '.join(unsteady)}"
    if disturbed := sum(run.disturbed for run in (*a, *b)):
        yield f"{disturbed} of {len(a) + len(b)} launches were disturbed"
    if a[0].items_per_step != b[0].items_per_step:
        yield f"compared per item: {a[0].items_per_step} items per step in A, {b[0].items_per_step} in B"
    sizes = a[0].parameters, b[0].parameters
    if None not in sizes and sizes[0] != sizes[1]:
        yield f"different networks: {sizes[0]:,} parameters in A, {sizes[1]:,} in B"


def _unsteady(runs: Sequence[Record], side: str) -> Iterator[str]:
    """How many of the launches have no steady state; of a single one, both of its medians."""
    found = [both for run in runs if (both := levels(run))]
    if found and len(runs) == 1:
        yield f"{side} ({' then '.join(seconds(level) for level in found[0])})"
    elif found:
        yield f"{len(found)} of {len(runs)} launches in {side}"


def _setting(record: Record) -> str:
    """What is not as by default."""
    default = _choices(RunSpec(workload=""))
    chosen = {name: value for name, value in _choices(record.spec).items() if value != default.get(name)}
    return ", ".join(f"{_SHOWN.get(name, name)} {value}" for name, value in chosen.items())


def _differing(a: Record, b: Record) -> str:
    one, other = _choices(a.spec), _choices(b.spec)
    names = [name for name in one | other if one.get(name) != other.get(name)]
    return ", ".join(f"{_SHOWN.get(name, name)} {_either(one.get(name), other.get(name))}" for name in names)


def _choices(spec: RunSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in CHOICES} | dict(spec.strategy_options) | dict(spec.options)


def _either(a: object, b: object) -> str:
    shown = ["default" if value is None else str(value) for value in (a, b)]
    return shown[0] if shown[0] == shown[1] else " → ".join(shown)
