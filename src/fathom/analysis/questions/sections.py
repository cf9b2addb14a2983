"""What does a program spend around its steps, and what is a GPU worth to it? Table 2 and Fig. 3 of the Minsky study.

Times are means over launches, as in that study, so that sections add up. Relative times come from runs of a fixed
number of steps without a profile, as `fathom repeat` makes them; other runs give seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from fathom import published
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table
from fathom.analysis.questions._launches import (
    CPU,
    GPU,
    MODES,
    PARTS,
    SECTIONS,
    Launches,
    Work,
    drawn_phase,
    head,
    launched,
    machine_of,
    measured_on,
    named,
    same_work,
    whose,
)
from fathom.analysis.questions._words import least_and_most, listed, unanswered
from fathom.analysis.selection import counted, on_cpu, select, usable, where, workload_order
from fathom.analysis.statistics import LEAST_LAUNCHES, Interval
from fathom.core.record import Record
from fathom.core.spec import PHASES

TITLE = "What does a program spend around its steps, and what is a GPU worth to it?"
OURS, PUBLISHED = "ours", "published"
STACKED = ("INIT", "SETUP", "RUN")
FASTER, NO_FASTER, UNTOLD = "Faster with a GPU", "No faster with a GPU", "Not told apart by these launches"
STARTING = ("imports", "construction", "GPU context", "data and weights", "first step")


@dataclass(frozen=True)
class Row:
    """The sections of one workload in one mode over the CPU's wall time: ours on a machine, or published."""

    workload: str
    phase: str
    mode: str
    source: str  # "ours", the place where there are several machines, or "published"
    over_wall: dict[str, float]  # section -> its time over the CPU's wall time
    interval: Interval | None = None  # of WALL over the CPU's, 95 %; None for too few launches and for published rows

    @property
    def ours(self) -> bool:
        return self.source != PUBLISHED

    @property
    def stack(self) -> dict[str, float]:
        """Parts that add up to WALL."""
        parts = {name: self.over_wall[name] for name in STACKED}
        return {**parts, "other": self.over_wall["WALL"] - sum(parts.values())}


def analyse(records: Sequence[Record]) -> Finding:
    known = [record for record in records if record.sections.wall_s is not None or record.outcome != "ok"]
    works, notes = same_work(known)
    others, skipped = _beside(known, works)
    selection = select(others, profiled=False)
    shown = _shown(works, launched(run for setting in selection.settings for run in setting.runs))
    notes = list(dict.fromkeys([*notes, *skipped, *selection.notes]))
    if not shown:
        return unanswered("sections", TITLE, "no run whose parent process saw its wall time", notes)
    rows = table_2(works)
    return Finding(
        question="sections",
        title=TITLE,
        summary=_summary(rows, shown),
        tables=[*_relative_tables(rows), _seconds_table(shown), _parts_table(shown)],
        charts=[*_charts(rows), _starting_chart(shown)],
        notes=[measured_on(shown), *_notes(), *_bounded_note(shown), *notes],
    )


def _shown(works: Sequence[Work], others: Sequence[Launches]) -> list[Launches]:
    """At each place the launches that can be compared, or else whatever ran there."""
    return sorted([*others, *(launches for work in works for launches in work.modes)], key=_launches_order)


def _beside(records: Sequence[Record], works: Sequence[Work]) -> tuple[list[Record], list[str]]:
    """The runs at places without launches to compare, and a note on the others that same_work() does not tell of."""
    compared = [launches for work in works for launches in work.modes]
    places = {(each.workload, each.phase, each.machine, each.place) for each in compared}
    modes = {(each.workload, each.phase, each.machine, each.mode) for each in compared}
    beside, skipped = [], []
    for run in usable(records, False, PHASES)[0]:
        what = (run.spec.workload, run.spec.phase, machine_of(run))
        whole = run.spec.kind != "profiled" and run.spec.budget_s is None
        if (*what, where(run)) in places:
            skipped += [] if whole else [run]
        elif not (whole and (*what, CPU if on_cpu(run) else GPU) in modes):  # those same_work() has told of
            beside.append(run)
    if not skipped:
        return beside, []
    told = counted(f"{run.spec.workload} {run.spec.phase} on {where(run)} ({run.spec.preset})" for run in skipped)
    why = "profiled or with a time budget, where launches of a fixed number of steps are"
    return beside, [f"Left out, {why}: {told}."]


def table_2(works: Sequence[Work]) -> list[Row]:
    """Ours, each followed by the published row that it stands beside; without a wall time on the CPU there is none."""
    several = len({work.machine for work in works}) > 1
    rows: list[Row] = []
    for work in works:
        base = work.cpu.mean("wall_s") if work.cpu else None
        for launches in work.modes if base else []:
            means = {name: launches.mean(section) for name, section in SECTIONS.items()}
            over_wall = {name: mean / base for name, mean in means.items() if mean is not None and base}
            source = launches.place if several else OURS
            rows.append(Row(work.workload, work.phase, launches.mode, source, over_wall, _over(launches, work.cpu)))
    beside = {(row.workload, row.mode) for row in rows if row.phase == "train"}
    rows += [row for row in published_rows() if (row.workload, row.mode) in beside]
    return sorted(rows, key=_order)


def _over(launches: Launches, cpu: Launches | None) -> Interval | None:
    if cpu is None or cpu is launches:
        return None
    return ratio_of_means(launches.seconds("wall_s"), cpu.seconds("wall_s"))


def ratio_of_means(above: Sequence[float], below: Sequence[float]) -> Interval | None:
    """With its 95 % interval: Welch's, of relative errors, on a scale of logarithms. None for too few values."""
    if min(len(above), len(below)) < LEAST_LAUNCHES:
        return None
    ratio = float(np.mean(above) / np.mean(below))
    parts = [float(np.var(side, ddof=1) / len(side) / np.mean(side) ** 2) for side in (above, below)]
    if not sum(parts):
        return Interval(ratio, ratio, ratio)
    free = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, (above, below), strict=True))
    error = float(stats.t.ppf(0.975, free) * np.sqrt(sum(parts)))
    return Interval(ratio, ratio * float(np.exp(-error)), ratio * float(np.exp(error)))


def published_rows() -> list[Row]:
    return [
        Row(workload, "train", mode, PUBLISHED, _named(sections))
        for (workload, mode), sections in published.sections().items()
    ]


def _named(sections: published.Sections) -> dict[str, float]:
    return {name: getattr(sections, name.lower()) for name in SECTIONS}


def _order(row: Row) -> tuple[object, ...]:
    return workload_order(row.workload), row.phase != "train", MODES.index(row.mode), not row.ours, row.source


def _relative_tables(rows: Sequence[Row]) -> list[Table]:
    if not rows:
        return []
    cells: list[list[Cell]] = [
        [row.workload, row.phase, row.mode, row.source, *map(row.over_wall.get, SECTIONS)] for row in rows
    ]
    columns = ["workload", "phase", "mode", "source", *SECTIONS]
    tables = [
        Table(title="Sections over the CPU's wall time, as in Table 2 of the Minsky study", columns=columns, rows=cells)
    ]
    with_gpu = [row for row in rows if row.mode == GPU and row.ours]
    return [*tables, _fig_3_table(with_gpu)] if with_gpu else tables


def _fig_3_table(rows: Sequence[Row]) -> Table:
    printed = published.sections()
    cells: list[list[Cell]] = []
    for row in rows:
        theirs = printed.get((row.workload, GPU)) if row.phase == "train" else None
        bounds: list[Cell] = [row.interval.low, row.interval.high] if row.interval else [None, None]
        ours: list[Cell] = [row.over_wall["WALL"], *bounds, 1 / row.over_wall["WALL"]]
        beside: list[Cell] = [theirs.wall, 1 / theirs.wall] if theirs else [None, None]
        cells.append([row.workload, row.phase, row.source, *ours, *beside])
    columns = ["workload", "phase", "source", "WALL over CPU's", "95 % from", "to", "speed-up"]
    columns += ["published", "published speed-up"]
    return Table(title="CPU+GPU against CPU, as in Fig. 3 of the Minsky study", columns=columns, rows=cells)


def _seconds_table(shown: Sequence[Launches]) -> Table:
    rows: list[list[Cell]] = []
    for launches in shown:
        what: list[Cell] = [launches.runs[0].spec.preset, launches.steps, len(launches.runs)]
        rows.append([*whose(launches, shown), *what, *map(launches.mean, SECTIONS.values())])
    columns = [*head(shown), "preset", "steps", "launches", *(f"{name} (s)" for name in SECTIONS)]
    return Table(title="Sections in seconds", columns=columns, rows=rows)


def _parts_table(shown: Sequence[Launches]) -> Table:
    known = {name: section for name, section in PARTS.items() if any(each.seconds(section) for each in shown)}
    rows: list[list[Cell]] = []
    for launches in shown:
        main = launches.mean("main_s")
        seconds = [launches.mean(section) for section in known.values()]
        shares: list[Cell] = [None if part is None or not main else 100 * part / main for part in seconds]
        rows.append([*whose(launches, shown), *seconds, *shares])
    columns = [*head(shown), *(f"{name} (s)" for name in known), *(f"{name} (%)" for name in known)]
    return Table(title="Named parts of the sections, and their share of MAIN", columns=columns, rows=rows)


def _launches_order(launches: Launches) -> tuple[object, ...]:
    phase = launches.phase != "train"
    return workload_order(launches.workload), phase, launches.mode == GPU, launches.machine, launches.place


def _charts(rows: Sequence[Row]) -> list[Chart]:
    phase = drawn_phase(row.phase for row in rows)
    drawn = [row for row in rows if row.phase == phase]
    ours = [row for row in drawn if row.ours]
    theirs = [row for row in drawn if not row.ours]
    charts = []
    if ours:
        other = (
            "Other is in WALL and in none of the three: starting Python, describing the machine, ending the program."
        )
        charts.append(_stack_chart(ours, "Sections over the CPU's wall time: ours", other))
    if theirs:
        charts.append(_stack_chart(theirs, "Sections over the CPU's wall time: published"))
    return [*charts, _fig_3_chart(drawn)] if any(row.mode == GPU for row in ours) else charts


def _stack_chart(rows: Sequence[Row], title: str, note: str = "") -> Chart:
    several = len({row.source for row in rows}) > 1
    names = [f"{row.workload}, {row.source if several else row.mode}" for row in rows]
    return Chart(
        kind="stacked",
        title=title,
        x_title="workload",
        y_title="time over the CPU's wall time",
        series=[Series(name=part, x=names, y=[row.stack[part] for row in rows]) for part in (*STACKED, "other")],
        note=note,
    )


def _fig_3_chart(rows: Sequence[Row]) -> Chart:
    """The CPU's bars are 1; only workloads that ran with a GPU here."""
    with_gpu = [row for row in rows if row.mode == GPU]
    names = list(dict.fromkeys(row.workload for row in with_gpu if row.ours))
    bars: dict[str, dict[str, float]] = {"CPU alone": dict.fromkeys(names, 1.0)}
    for row in sorted(with_gpu, key=lambda row: not row.ours):
        bars.setdefault(f"{row.mode}, {row.source}", {})[row.workload] = row.over_wall["WALL"]
    return Chart(
        kind="bar",
        title="Total time with a GPU, relative to the CPU alone",
        x_title="workload",
        y_title="wall time over the CPU's",
        series=[Series(name=name, x=names, y=list(map(values.get, names))) for name, values in bars.items()],
    )


def _starting_chart(shown: Sequence[Launches]) -> Chart:
    phase = drawn_phase(launches.phase for launches in shown)
    drawn = [launches for launches in shown if launches.phase == phase]
    names = [named(launches, drawn) for launches in drawn]
    parts = [starting(launches) for launches in drawn]
    return Chart(
        kind="stacked",
        title=f"Until the first step is done: {phase}",
        x_title="workload",
        y_title="time (s)",
        series=[
            Series(name=name, x=names, y=[part[name] for part in parts])
            for name in STARTING
            if any(part[name] for part in parts)
        ],
    )


def starting(launches: Launches) -> dict[str, float]:
    """What a program does until its first step is done, in seconds; the parts add up."""
    seconds = {name: launches.mean(section) or 0.0 for name, section in {**SECTIONS, **PARTS}.items()}
    imports, context = seconds["imports"], seconds["GPU context"]
    values = (imports, seconds["INIT"] - imports, context, seconds["SETUP"] - context, seconds["first step"])
    return dict(zip(STARTING, values, strict=True))


def _summary(rows: Sequence[Row], shown: Sequence[Launches]) -> str:
    phase = drawn_phase(row.phase for row in rows)
    ours = [row for row in rows if row.phase == phase and row.ours]
    if not ours:
        return _starting_summary(shown)
    several = len({row.source for row in ours}) > 1
    names = {id(row): f"{row.workload} on {row.source}" if several else row.workload for row in ours}
    before = {names[id(row)]: row.over_wall["INIT"] + row.over_wall["SETUP"] for row in ours if row.mode == CPU}
    told = f"On the CPU, init and setup take {least_and_most(before, '.0%')} of a program's wall time"
    with_gpu = {names[id(row)]: row.over_wall["WALL"] for row in ours if row.mode == GPU}
    if not with_gpu:
        return f"{told}."
    told += f"; with a GPU a program takes {least_and_most(with_gpu, '.2f')} of it. "
    told += _contest({names[id(row)]: row for row in ours if row.mode == GPU})
    theirs = {row.workload: row.over_wall["WALL"] for row in rows if row.mode == GPU and not row.ours}
    return f"{told} Published: {least_and_most(theirs, '.2f')}." if theirs else told


def _contest(rows: Mapping[str, Row]) -> str:
    """Who is faster with a GPU and who is not, as far as launches tell."""
    if all(_answer(row.interval) == FASTER for row in rows.values()):
        return "All are faster with a GPU."
    answers: dict[str, list[str]] = {FASTER: [], NO_FASTER: [], UNTOLD: []}
    for name, row in rows.items():
        answers[_answer(row.interval)].append(f"{name} ({row.over_wall['WALL']:.2f})")
    return " ".join(f"{answer}: {listed(names)}." for answer, names in answers.items() if names)


def _answer(over_cpu: Interval | None) -> str:
    if over_cpu is None or over_cpu.low <= 1 <= over_cpu.high:
        return UNTOLD
    return NO_FASTER if over_cpu.low > 1 else FASTER


def _starting_summary(shown: Sequence[Launches]) -> str:
    """From runs that are as long as their budget, or that were profiled: what does not depend on that."""
    phase = drawn_phase(launches.phase for launches in shown)
    drawn = [launches for launches in shown if launches.phase == phase]
    seconds = {named(launches, drawn): sum(starting(launches).values()) for launches in drawn}
    return (
        f"Until its first step is done a program takes {least_and_most(seconds, '.1f')} seconds. These runs were "
        "profiled or had a time budget; `fathom repeat` makes runs whose whole time can be compared."
    )


def _notes() -> list[str]:
    theirs = published.sections()["autoenc", CPU].main
    return [
        "INIT is imports and construction; SETUP is data, weights and the device; RUN is every step, warm-up included; "
        "MAIN is all three; WALL is seen by the parent process, from the start of the program to its end.",
        "Values are means over launches, each a process of its own, as the Minsky study's are: sections then add up. "
        "Medians with intervals are in the finding on variance.",
        "The interval of WALL over the CPU's is Welch's, from how the launches of either mode differ; it wants "
        f"{LEAST_LAUNCHES} launches of each. A program is called faster or no faster where it excludes 1.",
        f"Published: {published.SOURCES['minsky_table2_sections']}; {published.MINSKY_MACHINE}, the default numbers of "
        "steps. It has no row for speech. Its programs and ours ran different numbers of steps, so that what is paid "
        "once weighs differently.",
        "Our INIT and MAIN include importing torch. In the study start-up lies outside MAIN, which is "
        f"{theirs:.2f} of WALL for autoenc on the CPU: these rows differ by definition.",
    ]


def _bounded_note(shown: Sequence[Launches]) -> list[str]:
    bounded = [
        each for each in shown if any(run.spec.kind == "profiled" or run.spec.budget_s is not None for run in each.runs)
    ]
    if not bounded:
        return []
    return [
        f"In seconds alone, {len(bounded)} of {len(shown)} rows: runs that had a time budget, which RUN is as long as, "
        "or that were profiled, which WALL would include."
    ]
