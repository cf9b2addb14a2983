"""Which hardware and setting to train on: device x count x interconnect x batch x precision x engine, ranked.

A `Choice` is one combination with its predicted time, energy and cost for a whole job. Choices that cannot be, with the
reason, are `Impossible`: they are shown, not dropped. Steps come from a simulation (engine/step_work.py), one for each
batch and precision; this file needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fathom.core.errors import BadOption
from fathom.core.spec import EAGER
from fathom.predict.catalogue import Interconnect, interconnect, interconnects
from fathom.predict.communication import Link
from fathom.predict.estimate import Estimate
from fathom.predict.measured_energy import JoulesPerItem
from fathom.predict.target import CUDAGRAPH, HostCosts, Target, gigabytes
from fathom.trace.step_work import StepWork

HOUR_S = 3600.0
LEAST_SAVED = 0.99  # of a step, from which another engine is a choice of its own
IN_SERVER = 8  # devices that NVLink or PCIe joins: those of one server
NVLINK = {  # device of the catalogue -> the NVLink that it has
    "P100": "NVLink 1",
    "V100": "NVLink 2",
    "A100 40GB": "NVLink 3",
    "A100 80GB": "NVLink 3",
    "H100 SXM": "NVLink 4",
    "H200": "NVLink 4",
    "B200": "NVLink 5",
}
PCIE = {  # ... -> the newest PCIe that it has
    "K20": "PCIe 2",
    "K20X": "PCIe 2",
    "K40": "PCIe 3",
    "TITAN X": "PCIe 3",
    "K80": "PCIe 3",
    "P100": "PCIe 3",
    "V100": "PCIe 3",
    "A100 40GB": "PCIe 4",
    "A100 80GB": "PCIe 4",
    "H100 SXM": "PCIe 5",
    "H100 PCIe": "PCIe 5",
    "H200": "PCIe 5",
    "B200": "PCIe 5",
    "MI300X": "PCIe 5",
}
LOCAL = ("NVLink", "PCIe")  # links inside a server
OLDEST_PCIE, NETWORKS = "PCIe 3", ("InfiniBand EDR", "Ethernet 10")  # compared where none is asked for
TIME, ENERGY, COST = "time", "energy", "cost"
MOST = 1e18  # items or epochs of a job
AT_TDP, MEASURED = "at the TDP of the devices alone", "from measured joules per item"

Predict = Callable[[StepWork, Target, int, Link | None], Estimate]
Steps = Callable[[Target, str, int], StepWork]  # target, precision, batch of one device


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be done, and what it may take."""

    items: float  # of an epoch
    epochs: float = 1.0
    within_s: float | None = None
    budget: float | None = None  # in the currency of the prices
    prices: Mapping[str, float] = field(default_factory=dict)  # device -> per device and hour

    def __post_init__(self) -> None:
        for name, value in {"--items": self.items, "--epochs": self.epochs}.items():
            if not (0 < value < MOST):
                limit = f"below {MOST:g}" if value > 0 else "above 0"
                raise BadOption(f"{name} must be {limit}, not {value:g}")
        if self.budget is not None and not self.budget >= 0:
            raise BadOption(f"--budget must be 0 or more, not {self.budget:g}")
        if self.budget is not None and not self.prices:
            raise BadOption("--budget needs prices, such as --price h100=2.5 (per device and hour): none are assumed")

    def steps(self, items_a_step: int) -> float:
        """The last step of an epoch may have fewer items, and takes as long."""
        return math.ceil(self.items / items_a_step) * self.epochs


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What is combined. Batches are of one device, as in weak scaling."""

    targets: Sequence[Target]
    counts: Sequence[int] = (1, 2, 4, 8)
    interconnects: Sequence[Interconnect] | None = None  # None: those that such devices usually have
    batches: Sequence[int] = ()
    precisions: Sequence[str] = ("fp32", "bf16")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One combination, and what the job takes with it."""

    device: str
    count: int
    interconnect: str | None  # None: one device
    batch: int  # of one device
    precision: str
    engine: str
    estimate: Estimate
    seconds: float
    low_s: float
    high_s: float
    energy_j: float | None
    energy_is: str | None  # AT_TDP or MEASURED; None: not known
    at_tdp_j: float | None  # also where it was measured: what choices of which not all were measured are compared by
    cost: float | None  # None: no price was given

    @property
    def axes(self) -> dict[str, str]:
        """By name, in words; what two choices differ in is read off these."""
        return {
            "device": self.device,
            "count": str(self.count),
            "interconnect": self.interconnect or "-",
            "batch": str(self.batch),
            "precision": self.precision,
            "engine": self.engine,
        }

    def __str__(self) -> str:
        joined = f" on {self.interconnect}" if self.interconnect else ""
        engine = "" if self.engine == EAGER else f", {self.engine}"
        return f"{self.count} x {self.device}{joined}, batch {self.batch} each, {self.precision}{engine}"


@dataclass(frozen=True, kw_only=True)
class Impossible:
    """A combination that cannot be, and why; what is None does not matter to the reason."""

    why: str
    device: str
    precision: str | None = None
    batch: int | None = None
    count: int | None = None
    interconnect: str | None = None

    def __str__(self) -> str:
        batch = "" if self.batch is None else f"batch {self.batch} "
        precision = "" if self.precision is None else f"{'in ' if batch else ''}{self.precision} on "
        devices = self.device if self.count is None else f"{self.count} x {self.device} on {self.interconnect}"
        return f"{batch}{precision}{devices}: {self.why}"


@dataclass(frozen=True)
class Plan:
    job: Job
    choices: list[Choice]  # possible ones, the fastest first
    impossible: list[Impossible]

    def best(self, by: str) -> Choice | None:
        """None where it is not known of any choice: energy without a TDP, cost without a price."""
        known = [each for each in self.choices if self._spent(each, by) is not None]
        return min(known, key=lambda each: (self._spent(each, by), each.seconds, each.count), default=None)

    @property
    def allowed(self) -> list[Choice]:
        """Within the time and the budget, as predicted."""
        return [each for each in self.choices if self.in_time(each) and self.in_budget(each)]

    def in_time(self, choice: Choice) -> bool:
        return self.job.within_s is None or choice.seconds <= self.job.within_s

    def in_budget(self, choice: Choice) -> bool:
        return self.job.budget is None or (choice.cost is not None and choice.cost <= self.job.budget)

    def advised(self) -> Choice:
        """Without a limit the fastest; within a time limit the cheapest, or with the least energy; else the reason.

        Where some choices keep the time limit with the upper end of their interval too, one of those.
        """
        if not self.choices:
            reasons = "; ".join(map(str, self.impossible[:3]))
            raise BadOption(f"no combination is possible: {reasons}")
        if not (allowed := self.allowed):
            raise BadOption(self._refusal())
        if self.job.within_s is None:
            return min(allowed, key=lambda each: (each.seconds, each.count))
        sure = [each for each in allowed if each.high_s <= self.job.within_s] or allowed
        return min(sure, key=self._least_spent)

    def _spent(self, choice: Choice, by: str) -> float | None:
        """Measured joules beside those at a TDP, which no device reaches all the time, would always seem the fewer."""
        all_measured = {each.energy_is for each in self.choices} <= {MEASURED, None}
        energy = choice.energy_j if all_measured else choice.at_tdp_j
        return {TIME: choice.seconds, ENERGY: energy, COST: choice.cost}[by]

    def _least_spent(self, choice: Choice) -> tuple[float, float, float]:
        """Cost first, then energy, then device-hours."""
        cost, energy = (self._spent(choice, by) for by in (COST, ENERGY))
        return (
            math.inf if cost is None else cost,
            math.inf if energy is None else energy,
            choice.count * choice.seconds,
        )

    def _refusal(self) -> str:
        fastest = self.choices[0]
        if self.job.within_s is not None and not self.in_time(fastest):
            asked = self.job.within_s / HOUR_S
            took = f"{fastest.seconds / HOUR_S:.3g} h"
            return f"no setting takes {asked:.3g} h or less: the fastest, {fastest}, takes {took}"
        cheapest = self.best(COST)
        if cheapest is None or cheapest.cost is None:
            return "the budget cannot be kept: no compared device has a price (--price device=...)"
        both = " and time limit" if self.job.within_s is not None else ""
        return (
            f"no setting keeps the budget of {self.job.budget:g}{both}: the cheapest, {cheapest}, costs "
            f"{cheapest.cost:.4g} and takes {cheapest.seconds / HOUR_S:.3g} h"
        )

    def next_best(self, choice: Choice) -> tuple[str, Choice] | None:
        """The single change of one axis that saves the most time within the budget, and its name, if any."""
        near = [(axis, each) for each in self.choices if (axis := _only_difference(choice, each)) is not None]
        faster = [(axis, each) for axis, each in near if each.seconds < choice.seconds and self.in_budget(each)]
        return min(faster, key=lambda pair: (pair[1].seconds, pair[1].count), default=None)


def _only_difference(one: Choice, other: Choice) -> str | None:
    """The axis, where there is just one; a second device brings its interconnect along."""
    differ = [name for name in one.axes if one.axes[name] != other.axes[name]]
    if differ == ["count", "interconnect"] and 1 in (one.count, other.count):
        return "count"
    return differ[0] if len(differ) == 1 else None


def plan(job: Job, grid: Grid, steps: Steps, predict: Predict, joules_per_item: JoulesPerItem | None = None) -> Plan:
    """All combinations. `joules_per_item` has what was measured on one device."""
    found: list[Choice] = []
    refused: dict[Impossible, None] = {}  # in the order in which they are met, each once
    for target in grid.targets:
        for precision in grid.precisions:
            if (why := target.lacks(precision)) is not None:
                refused[Impossible(why=why, device=target.name, precision=precision)] = None
                continue
            for batch in grid.batches:
                try:
                    step = steps(target, precision, batch)
                    why = does_not_fit(step, target)
                except BadOption as error:  # a model of one's own that has no such batch, say
                    why = str(error)
                if why is not None:
                    refused[Impossible(why=why, device=target.name, precision=precision, batch=batch)] = None
                    continue
                for count, link in _joined(target, grid, refused):
                    found += _choices(job, batch, step, target, count, link, predict, joules_per_item or {})
    ordered = sorted(found, key=lambda each: (each.seconds, each.count, each.batch, each.engine != EAGER))
    return Plan(job, ordered, list(refused))


def does_not_fit(step: StepWork, target: Target) -> str | None:
    if target.memory_bytes is None or step.peak_bytes <= target.memory_bytes:
        return None
    return f"needs {gigabytes(step.peak_bytes)}, {target.name} has {gigabytes(target.memory_bytes)}"


def _joined(target: Target, grid: Grid, refused: dict[Impossible, None]) -> Iterable[tuple[int, Interconnect | None]]:
    """Every count with every interconnect that can join so many such devices."""
    links = usual_links(target) if grid.interconnects is None else grid.interconnects
    for count in grid.counts:
        if count == 1:
            yield 1, None
            continue
        for link in links:
            if (why := cannot_join(target.model, count, link.name)) is None:
                yield count, link
            elif grid.interconnects is not None:
                refused[Impossible(why=why, device=target.name, count=count, interconnect=link.name)] = None


def usual_links(target: Target) -> list[Interconnect]:
    """What is compared by default: inside a server a GPU's own, and two networks, a fast and a slow one."""
    own = NVLINK.get(target.model, PCIE.get(target.model, OLDEST_PCIE))
    known = target.gpu and own in interconnects()
    return [interconnect(name) for name in ([own] if known else []) + list(NETWORKS)]


def cannot_join(device: str, count: int, link: str) -> str | None:
    if link.startswith("NVLink") and device in NVLINK and NVLINK[device] != link:
        return f"{device} has {NVLINK[device]}"
    if link.startswith("NVLink") and device not in NVLINK:
        return f"{device} has no NVLink"
    if link.startswith("PCIe") and link > PCIE.get(device, link):
        return f"{device} has {PCIE[device]}"
    if link.startswith(LOCAL) and count > IN_SERVER:
        return f"{link.split(maxsplit=1)[0]} joins the devices of one server, {IN_SERVER} at most; more need a network"
    return None


def _choices(
    job: Job,
    batch: int,
    step: StepWork,
    target: Target,
    count: int,
    joined: Interconnect | None,
    predict: Predict,
    joules_per_item: JoulesPerItem,
) -> list[Choice]:
    link = None if joined is None else Link.of(joined)
    engines = {EAGER: target}
    if target.gpu and target.host != HostCosts():
        engines[CUDAGRAPH] = target.executed_by(CUDAGRAPH)
    found: list[Choice] = []
    for engine, executed in engines.items():
        estimate = predict(step, executed, count, link)
        if found and estimate.step_s > LEAST_SAVED * found[0].estimate.step_s:
            continue  # the host was not what the step waited for
        if engine != EAGER:
            estimate = replace(estimate, coverage=None)  # measured on eager steps
        seconds = job.steps(count * step.batch) * estimate.step_s
        measured = joules_per_item.get((target.model, step.precision, step.batch)) if engine == EAGER else None
        at_tdp = None if target.tdp_w is None else target.tdp_w * count * seconds
        energy, source = at_tdp, None if at_tdp is None else AT_TDP
        if measured is not None and count == 1:  # it says nothing of several devices, which wait for each other
            energy, source = measured * job.items * job.epochs, MEASURED
        price = job.prices.get(target.name)
        found.append(
            Choice(
                device=target.name,
                count=count,
                interconnect=None if joined is None else joined.name,
                batch=batch,
                precision=step.precision,
                engine=engine,
                estimate=estimate,
                seconds=seconds,
                low_s=seconds * estimate.low_s / estimate.step_s,
                high_s=seconds * estimate.high_s / estimate.step_s,
                energy_j=energy,
                energy_is=source,
                at_tdp_j=at_tdp,
                cost=None if price is None else price * count * seconds / HOUR_S,
            )
        )
    return found
