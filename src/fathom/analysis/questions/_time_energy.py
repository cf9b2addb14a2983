"""Settings (batch, precision, engine, caps) on the plane of time and energy: the Pareto front, and what a cap costs."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fathom import published
from fathom.analysis.energy_runs import INVALID, LARGEST_SPREAD, EnergyRuns, joules, labels, sweeps
from fathom.analysis.finding import Cell, Chart, Series, Table
from fathom.analysis.pareto import (
    FULL_SPEED,
    Choice,
    Recommendation,
    least_delay_product,
    least_energy,
    least_energy_near_full_speed,
    pareto_front,
)
from fathom.analysis.selection import configuration, told_apart
from fathom.core.formatting import count, in_percent, listed, seconds

NO_TIME_LOST = 0.02  # of the step time without a cap: less is no loss
SPELT_OUT = 3  # sweeps of which each has its sentence
CAPS = ("power_cap_w", "clock_cap_mhz")


@dataclass(frozen=True)
class Sweep:
    """Settings of one workload in one phase on one machine that differ in what was chosen alone."""

    runs: list[EnergyRuns]

    @property
    def name(self) -> str:
        first = self.runs[0]
        return f"{first.workload} {first.phase} on {first.runs[0].machine_label}"

    @property
    def labels(self) -> list[str]:
        return labels(self.runs)

    @property
    def choices(self) -> list[Choice]:
        """Each setting with what its trials took for an item."""
        return [
            Choice(
                label,
                tuple(energy.window_s / energy.steps / runs.items_per_step for energy in runs.energies),
                tuple(energy.per_step_j / runs.items_per_step for energy in runs.energies),
            )
            for label, runs in zip(self.labels, self.runs, strict=True)
        ]

    @property
    def front(self) -> list[int]:
        """The settings that no other beats significantly in time and energy, the fastest first; of the valid ones."""
        choices = self.choices
        valid = [choices[index] for index in self.valid] or choices
        return [choices.index(choice) for choice in pareto_front(valid)]

    @property
    def valid(self) -> list[int]:
        """The settings with a valid trial. Trials that differ among themselves are no reason against a setting.

        How much they differ is in its interval, and so in what it is significantly better than.
        """
        return [index for index, runs in enumerate(self.runs) if not runs.window_reasons]

    @property
    def reference(self) -> Choice:
        """Full speed: the fastest setting without a cap, or the fastest of all; of the valid ones, where there are."""
        choices, candidates = self.choices, self.valid or range(len(self.runs))
        free = [choices[index] for index in candidates if not _is_capped(self.runs[index])]
        return min(free or [choices[index] for index in candidates], key=lambda choice: choice.time.median)

    def recommended(self, slower: float = FULL_SPEED) -> dict[str, Recommendation]:
        """Aim -> the setting for it, among those that were measured validly; none where none was."""
        choices = self.choices
        valid = [choices[index] for index in self.valid]
        if not valid:
            return {}
        return {
            "least energy": least_energy(valid, self.reference),
            "least EDP": least_delay_product(valid, self.reference),
            f"least energy within {100 * slower:g} % of full speed": least_energy_near_full_speed(
                valid, self.reference, slower
            ),
        }

    @property
    def least_at_full_speed(self) -> bool:
        """Whether the recommended setting for least energy is full speed."""
        least = self.recommended().get("least energy")
        return least is not None and least.choice.setting == self.reference.setting

    def sentences(self, slower: float = FULL_SPEED) -> list[str]:
        found = self.recommended(slower)
        if not found:
            return [f"{self.name}: no setting was measured validly."]
        return [f"{self.name}, {aim}: {_in_words(each, self.reference)}." for aim, each in found.items()]


def _in_words(found: Recommendation, reference: Choice) -> str:
    """What it costs, and against full speed what it saves and what time it takes."""
    text = f"{found.choice.setting}, {joules(found.choice.energy.median)} per item"
    if found.choice.setting == reference.setting:
        return f"{text}, which is full speed{_equals(found)}"
    energy, time = 100 * (found.energy_ratio - 1), 100 * (found.time_ratio - 1)
    energy, time = round(energy) + 0.0, round(time) + 0.0  # no -0
    return f"{text} ({energy:+.0f} % energy, {time:+.0f} % time against {reference.setting}){_equals(found)}"


def _equals(found: Recommendation) -> str:
    others = [choice.setting for choice in found.equals]
    return f"; no significant difference from {listed(others)}" if others else ""


def found_sweeps(found: Sequence[EnergyRuns]) -> list[Sweep]:
    return [Sweep(group) for group in sweeps(found)]


def sweep_sentences(found: Sequence[Sweep]) -> list[str]:
    """One for each sweep; of many, those whose least energy is their full speed are counted in one sentence."""
    if len(found) <= SPELT_OUT:
        return [sweep.sentences()[0] for sweep in found]
    others = [sweep for sweep in found if not sweep.least_at_full_speed]
    fastest = len(found) - len(others)
    counted = f"Least energy is at full speed in {fastest} of {len(found)} sweeps."
    return [counted, *(sweep.sentences()[0] for sweep in others)]


def recommendation_table(found: Sequence[Sweep]) -> Table:
    """The setting for each aim, against full speed."""
    rows: list[list[Cell]] = []
    for sweep in found:
        for aim, each in sweep.recommended().items():
            equals = listed([choice.setting for choice in each.equals]) or None
            ratios = (100 * (each.energy_ratio - 1), 100 * (each.time_ratio - 1))
            rows.append([sweep.name, aim, each.choice.setting, *ratios, sweep.reference.setting, equals])
    columns = ["workload", "aim", "setting", "energy against full speed (%)", "time against full speed (%)"]
    columns += ["full speed", "no significant difference from"]
    return Table(title="Recommended settings", columns=columns, rows=rows)


def choice_table(sweep: Sweep) -> Table:
    rows: list[list[Cell]] = []
    least = min(sweep.runs[index].per_item_j for index in sweep.valid or range(len(sweep.runs)))
    for index, (runs, label) in enumerate(zip(sweep.runs, sweep.labels, strict=True)):
        rows.append(
            [
                label,
                len(runs.runs),
                1e3 * runs.item_s,
                runs.per_item_j,
                100 * (runs.per_item_j / least - 1) if least > 0 else None,
                runs.mean_w,
                runs.item_edp,
                "yes" if index in sweep.front else "no",
                runs.verdict,
            ]
        )
    columns = ["setting", "trials", "time per item (ms)", "energy per item (J)", "above the least (%)", "power (W)"]
    columns += ["EDP per item (J s)", "on the Pareto front", "verdict"]
    alarms = [(row, len(columns) - 1) for row, cells in enumerate(rows) if cells[-1] == INVALID]
    return Table(title=f"Choices: {sweep.name}", columns=columns, rows=rows, alarms=alarms)


def plane(sweep: Sweep) -> Chart:
    points = list(zip(sweep.runs, sweep.labels, strict=True))
    front = [sweep.runs[index] for index in sweep.front]
    settings = [
        Series(name=label, x=[1e3 * runs.item_s], y=[runs.per_item_j], text=[f"{seconds(runs.item_s)}, {runs.verdict}"])
        for runs, label in points
    ]
    line = Series(
        name="Pareto front",
        role="limit",
        x=[1e3 * runs.item_s for runs in front],
        y=[runs.per_item_j for runs in front],
    )
    return Chart(
        kind="scatter",
        title=f"Time and energy: {sweep.name}",
        x_title="time per item (ms)",
        y_title="energy per item (J)",
        unit="J",
        series=[*settings, line] if len(front) > 1 else settings,
        note="Left is faster, below is cheaper. "
        + (
            "No setting beats one on the front significantly."
            if len(front) > 1
            else f"The Pareto front is one setting: {sweep.labels[sweep.front[0]]}."
        ),
    )


@dataclass(frozen=True)
class Capped:
    """A setting below a cap beside the same work without one."""

    below: EnergyRuns
    free: EnergyRuns
    limit: str | None  # what limits the workload, by the roofline

    @property
    def cap(self) -> str:
        spec = self.below.spec
        power = None if spec.power_cap_w is None else f"{spec.power_cap_w:g} W"
        clock = None if spec.clock_cap_mhz is None else f"{spec.clock_cap_mhz:g} MHz"
        return ", ".join(filter(None, (power, clock)))

    @property
    def time(self) -> float:
        return self.below.step_s / self.free.step_s

    @property
    def energy(self) -> float:
        return self.below.per_step_j / self.free.per_step_j

    @property
    def edp(self) -> float:
        return self.time * self.energy

    @property
    def saves(self) -> bool:
        """Energy, at no loss of time. Saved is what trials of one setting may not differ by."""
        return self.valid and self.time <= 1 + NO_TIME_LOST and self.energy < 1 - LARGEST_SPREAD

    @property
    def valid(self) -> bool:
        return INVALID not in (self.below.verdict, self.free.verdict)

    @property
    def name(self) -> str:
        return f"{self.below.workload} {self.below.phase}"


def caps(found: Sequence[EnergyRuns], limits: Mapping[tuple[str, str, str], str]) -> list[Capped]:
    """Every capped setting whose work was metered without a cap, too, by the same meters, and took joules there.

    Limits are verdicts of the roofline.
    """
    uncapped_runs = [runs for runs in found if not _is_capped(runs) and runs.per_step_j > 0]
    free = {(*_work(runs), runs.meters, runs.spec.id): runs for runs in uncapped_runs}
    pairs = []
    for runs in found:
        uncapped = dataclasses.replace(runs.spec, power_cap_w=None, clock_cap_mhz=None).id
        if _is_capped(runs) and (pair := free.get((*_work(runs), runs.meters, uncapped))):
            pairs.append(Capped(runs, pair, limits.get(_work(runs))))
    return pairs


def cap_sentence(pairs: Sequence[Capped]) -> str:
    """Full throttle is not the answer: who loses no time below a cap, and what limits them."""
    valid = [pair for pair in pairs if pair.valid]
    if not valid:
        return "No setting below a cap was measured validly."
    named = _named(valid)
    gains: dict[str, Capped] = {}
    for name, pair in sorted(named, key=lambda each: -each[1].energy):
        if pair.saves:
            gains[name] = pair  # the cap that saves the most comes last
    tested = len({name for name, _ in named})
    if not gains:
        return f"Below every cap, time is lost or no energy saved: {count(tested, 'pair')} of workload and phase."
    each = [
        f"{name} ({pair.cap}: {100 * (1 - pair.energy):.0f} % less energy{f', {pair.limit}' if pair.limit else ''})"
        for name, pair in gains.items()
    ]
    verb = "saves" if len(gains) == 1 else "save"
    of = f"{len(gains)} of {count(tested, 'pair')} of workload and phase"
    return f"{of} {verb} energy below a cap at no loss of time: {listed(each)}."


def _named(pairs: Sequence[Capped]) -> list[tuple[str, Capped]]:
    """With names, which have the machine where there are several, and in what the work differs beside its cap."""
    several = len({pair.below.machine for pair in pairs}) > 1
    names = [f"{pair.name} on {pair.below.machine}" if several else pair.name for pair in pairs]
    apart = told_apart([(name, configuration(pair.free.runs[0])) for name, pair in zip(names, pairs, strict=True)])
    return list(zip(apart, pairs, strict=True))


def cap_table(pairs: Sequence[Capped]) -> Table:
    rows: list[list[Cell]] = [
        [
            *(name, pair.below.machine, pair.cap),
            *(pair.time, pair.energy, pair.edp),
            "yes" if pair.saves else "no",
            pair.limit,
            pair.below.verdict,
        ]
        for name, pair in _named(pairs)
    ]
    columns = ["workload", "machine", "cap", "time ratio", "energy ratio", "EDP ratio"]
    columns += ["saves energy at no loss of time", "limited by", "verdict"]
    return Table(title="Below a cap, over the same work without one", columns=columns, rows=rows)


def cap_charts(pairs: Sequence[Capped]) -> list[Chart]:
    """Time, energy and EDP against the cap, over those without one: the figures of the power study."""
    charts = []
    for cap, title in (("power_cap_w", "power cap (W)"), ("clock_cap_mhz", "clock cap (MHz)")):
        own = [pair for pair in pairs if getattr(pair.below.spec, cap) is not None]
        for name, ratio in (("Time", "time"), ("Energy", "energy"), ("EDP", "edp")):
            lines: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
            for where, pair in _named(own):
                lines[where, pair.below.workload].append((getattr(pair.below.spec, cap), getattr(pair, ratio)))
            series = [
                Series(name=where, workload=workload, x=[x for x, _ in sorted(line)], y=[y for _, y in sorted(line)])
                for (where, workload), line in lines.items()
            ]
            if series:
                heading = f"{name} below a {title.partition(' (')[0]}"
                charts.append(
                    Chart(kind="line", title=heading, x_title=title, y_title="ratio to no cap", series=series)
                )
    return charts


def published_table(pairs: Sequence[Capped]) -> Table:
    """The statements of the power study, which capped clocks, and the same of such sweeps here; a dash without any."""
    named = _named([pair for pair in pairs if pair.valid and pair.below.spec.clock_cap_mhz is not None])
    every = {name for name, _ in named}
    ours = {
        "saved_energy": max((1 - pair.energy for _, pair in named), default=None),
        "workloads_less_edp": _share({name for name, pair in named if pair.edp < 1 - LARGEST_SPREAD}, every),
        "workloads_no_time_lost": _share({name for name, pair in named if pair.time <= 1 + NO_TIME_LOST}, every),
    }
    rows: list[list[Cell]] = [
        [said.statement, said.where, said.percent, in_percent(ours[quantity])]
        for quantity, said in published.power_statements().items()
    ]
    return Table(
        title="Below a clock cap, as published and as measured",
        columns=["the power study of 2018", "in its", "published (%)", "measured (%)"],
        rows=rows,
    )


def _share(some: set[str], all_of_them: set[str]) -> float | None:
    return len(some) / len(all_of_them) if all_of_them else None


def _is_capped(runs: EnergyRuns) -> bool:
    return any(getattr(runs.spec, name) is not None for name in CAPS)


def _work(runs: EnergyRuns) -> tuple[str, str, str]:
    return runs.workload, runs.phase, runs.machine
