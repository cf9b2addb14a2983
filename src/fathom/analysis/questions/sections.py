"""How much of a program is start-up, and how much does a GPU save? Table 2 and Fig. 3 of the Minsky study.

Times are means over launches, as in that study, so that sections add up. Relative times come from runs of a fixed
number of steps without a profile, as `fathom repeat` makes them; other runs give seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fathom import published
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.quantiles import student
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
    host_of,
    identity,
    launched,
    measured_on,
    named,
    same_work,
    several_machines,
)
from fathom.analysis.selection import machine_name, on_cpu, select, summarised, usable, workload_order
from fathom.analysis.statistics import LEAST_LAUNCHES, Interval
from fathom.core.formatting import least_and_most, listed, mean_and_range
from fathom.core.record import COMPILED_ANEW, Record
from fathom.core.spec import PHASES

TITLE = "How much of a program is start-up, and how much does a GPU save?"
ORDER = 110
MEASURED, PUBLISHED = "measured", "published"
STACKED = ("INIT", "SETUP", "RUN")
FASTER, SLOWER, UNDECIDED = "Faster with a GPU", "Slower with a GPU", "No significant difference"
UNTESTED = "Too few launches to tell"
START_UP = ("imports", "construction", "GPU context", "data and weights", "first step")


@dataclass(frozen=True)
class Row:
    """The sections of one workload in one mode over the CPU's wall time, measured or published."""

    workload: str
    phase: str
    mode: str
    source: str  # "measured", the machine where there are several hosts, or "published"
    over_wall: dict[str, float]  # section -> its time over the CPU's wall time
    interval: Interval | None = None  # of WALL over the CPU's, 95 %; None for too few launches and for published rows

    @property
    def measured(self) -> bool:
        return self.source != PUBLISHED

    @property
    def stack(self) -> dict[str, float]:
        """Parts that add up to WALL."""
        parts = {name: self.over_wall[name] for name in STACKED}
        return {**parts, "other": self.over_wall["WALL"] - sum(parts.values())}


def analyse(records: Sequence[Record]) -> Finding:
    known = [record for record in records if _has_sections(record) or record.outcome != "ok"]
    works, notes = same_work(known)
    others, skipped = _beside(known, works)
    selection = select(others, profiled=False)
    shown = _shown(works, launched(run for group in selection.groups for run in group.runs))
    notes = list(dict.fromkeys([*notes, *skipped, *selection.notes]))
    if not shown:
        return not_measured("sections", TITLE, "fathom repeat", notes)
    rows = table_2(works)
    return Finding(
        question="sections",
        title=TITLE,
        summary=_summary(rows, shown),
        tables=[*_relative_tables(rows), _seconds_table(shown), _parts_table(shown)],
        charts=[*_charts(rows), _start_up_chart(shown)],
        notes=[measured_on(shown), *_notes(), *_imports_note(shown), *_limited_note(shown), *notes],
    )


def _shown(works: Sequence[Work], others: Sequence[Launches]) -> list[Launches]:
    """On each machine the launches that can be compared, or else whatever ran there."""
    return sorted([*others, *(launches for work in works for launches in work.modes)], key=_launches_order)


def _beside(records: Sequence[Record], works: Sequence[Work]) -> tuple[list[Record], list[str]]:
    """The runs on machines without launches to compare, and a note on those that same_work() has no note on."""
    compared = [launches for work in works for launches in work.modes]
    machines = {(each.workload, each.phase, each.host, each.machine) for each in compared}
    modes = {(each.workload, each.phase, each.host, each.mode) for each in compared}
    beside, skipped = [], []
    for run in usable(records, False, PHASES)[0]:
        what = (run.spec.workload, run.spec.phase, host_of(run))
        whole = run.spec.kind == "timed" and run.spec.budget_s is None
        if (*what, machine_name(run)) in machines:
            skipped += [] if whole else [run]
        elif not (whole and (*what, CPU if on_cpu(run) else GPU) in modes):  # same_work() has a note on those
            beside.append(run)
    if not skipped:
        return beside, []
    runs = summarised(skipped, lambda run: f"{run.spec.phase} on {machine_name(run)} ({run.spec.preset})")
    return beside, [
        f"Not shown: profiled or time-limited runs superseded by launches of a fixed number of steps: {runs}."
    ]


def table_2(works: Sequence[Work]) -> list[Row]:
    """Measured rows, each followed by its published row; none without a wall time on the CPU."""
    several = several_machines([launches for work in works for launches in work.modes])
    rows: list[Row] = []
    for work in works:
        base = work.cpu.mean("wall_s") if work.cpu else None
        for launches in work.modes if base else []:
            means = {name: launches.mean(section) for name, section in SECTIONS.items()}
            over_wall = {name: mean / base for name, mean in means.items() if mean is not None and base}
            source = launches.machine if several else MEASURED
            rows.append(Row(work.workload, work.phase, launches.mode, source, over_wall, _over(launches, work.cpu)))
    beside = {(row.workload, row.mode) for row in rows if row.phase == "train"}
    rows += [row for row in published_rows() if (row.workload, row.mode) in beside]
    return sorted(rows, key=_order)


def _over(launches: Launches, cpu: Launches | None) -> Interval | None:
    if cpu is None or cpu is launches:
        return None
    return ratio_of_means(launches.seconds("wall_s"), cpu.seconds("wall_s"))


def ratio_of_means(above: Sequence[float], below: Sequence[float]) -> Interval | None:
    """With its 95 % interval: Welch's, of relative errors, on a log scale. None for too few values."""
    if min(len(above), len(below)) < LEAST_LAUNCHES:
        return None
    ratio = float(np.mean(above) / np.mean(below))
    parts = [float(np.var(side, ddof=1) / len(side) / np.mean(side) ** 2) for side in (above, below)]
    if not sum(parts):
        return Interval(ratio, ratio, ratio)
    free = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, (above, below), strict=True))
    error = float(student(0.975, free) * np.sqrt(sum(parts)))
    return Interval(ratio, ratio * float(np.exp(-error)), ratio * float(np.exp(error)))


def published_rows() -> list[Row]:
    return [
        Row(workload, "train", mode, PUBLISHED, _named(sections))
        for (workload, mode), sections in published.sections().items()
    ]


def _named(sections: published.Sections) -> dict[str, float]:
    return {name: getattr(sections, name.lower()) for name in SECTIONS}


def _order(row: Row) -> tuple[object, ...]:
    return workload_order(row.workload), row.phase != "train", MODES.index(row.mode), not row.measured, row.source


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
    with_gpu = [row for row in rows if row.mode == GPU and row.measured]
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
    columns = ["workload", "phase", "source", "CPU+GPU/CPU", "95 % from", "95 % to", "speed-up"]
    columns += ["published", "published speed-up"]
    return Table(title="Wall time of CPU+GPU over CPU, as in Fig. 3 of the Minsky study", columns=columns, rows=cells)


def _seconds_table(shown: Sequence[Launches]) -> Table:
    rows: list[list[Cell]] = []
    for launches in shown:
        what: list[Cell] = [launches.runs[0].spec.preset, launches.steps, len(launches.runs)]
        rows.append([*identity(launches, shown), *what, *map(launches.mean, SECTIONS.values())])
    columns = [*head(shown), "preset", "steps", "launches", *(f"{name} (s)" for name in SECTIONS)]
    return Table(title="Sections in seconds", columns=columns, rows=rows)


def _parts_table(shown: Sequence[Launches]) -> Table:
    known = {name: section for name, section in PARTS.items() if any(each.seconds(section) for each in shown)}
    rows: list[list[Cell]] = []
    for launches in shown:
        main = launches.mean("main_s")
        seconds = [launches.mean(section) for section in known.values()]
        shares: list[Cell] = [None if part is None or not main else 100 * part / main for part in seconds]
        rows.append([*identity(launches, shown), *seconds, *shares])
    columns = [*head(shown), *(f"{name} (s)" for name in known), *(f"{name} (%)" for name in known)]
    return Table(title="Parts of the sections, and their share of MAIN", columns=columns, rows=rows)


def _launches_order(launches: Launches) -> tuple[object, ...]:
    phase = launches.phase != "train"
    return workload_order(launches.workload), phase, launches.mode == GPU, launches.host, launches.machine


def _charts(rows: Sequence[Row]) -> list[Chart]:
    phase = drawn_phase(row.phase for row in rows)
    drawn = [row for row in rows if row.phase == phase]
    ours = [row for row in drawn if row.measured]
    theirs = [row for row in drawn if not row.measured]
    charts = []
    if ours:
        other = "Other is the rest of WALL: starting Python, reading the machine's description, ending the program."
        charts.append(_stack_chart(ours, "Sections over the CPU's wall time: measured", other))
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
        series=[
            *(Series(name=part, x=names, y=[row.stack[part] for row in rows]) for part in STACKED),
            Series(name="other", role="remainder", x=names, y=[row.stack["other"] for row in rows]),
        ],
        note=note,
    )


def _fig_3_chart(rows: Sequence[Row]) -> Chart:
    """The CPU's bars are 1; only workloads that ran with a GPU here."""
    with_gpu = [row for row in rows if row.mode == GPU]
    names = list(dict.fromkeys(row.workload for row in with_gpu if row.measured))
    bars: dict[str, dict[str, float]] = {"CPU alone": dict.fromkeys(names, 1.0)}
    printed = {f"{row.mode}, {row.source}" for row in with_gpu if not row.measured}
    for row in sorted(with_gpu, key=lambda row: not row.measured):
        bars.setdefault(f"{row.mode}, {row.source}", {})[row.workload] = row.over_wall["WALL"]
    return Chart(
        kind="bar",
        title="Total time with a GPU, relative to the CPU alone",
        x_title="workload",
        y_title="wall time over the CPU's",
        series=[
            Series(
                name=name,
                role="published" if name in printed else "measured",
                x=names,
                y=list(map(values.get, names)),
            )
            for name, values in bars.items()
        ],
    )


def _start_up_chart(shown: Sequence[Launches]) -> Chart:
    phase = drawn_phase(launches.phase for launches in shown)
    drawn = [launches for launches in shown if launches.phase == phase]
    names = [named(launches, drawn) for launches in drawn]
    parts = [start_up(launches) for launches in drawn]
    return Chart(
        kind="stacked",
        title=f"Start-up time to the end of the first step: {phase}",
        x_title="workload",
        y_title="time (s)",
        unit="s",
        series=[
            Series(name=name, x=names, y=[part[name] for part in parts])
            for name in START_UP
            if any(part[name] for part in parts)
        ],
    )


def _has_sections(record: Record) -> bool:
    """Whether the wall time is known, and of a run with timed steps also its parts."""
    sections = record.sections
    parts = (sections.init_s, sections.setup_s, sections.run_s)
    return sections.wall_s is not None and (not record.step_s or None not in parts)


def start_up(launches: Launches) -> dict[str, float]:
    """The parts of a program up to the end of its first step, in seconds; they add up."""
    seconds = {name: launches.mean(section) or 0.0 for name, section in {**SECTIONS, **PARTS}.items()}
    imports, context = seconds["imports"], seconds["GPU context"]
    values = (imports, seconds["INIT"] - imports, context, seconds["SETUP"] - context, seconds["first step"])
    return dict(zip(START_UP, values, strict=True))


def _summary(rows: Sequence[Row], shown: Sequence[Launches]) -> str:
    phase = drawn_phase(row.phase for row in rows)
    ours = [row for row in rows if row.phase == phase and row.measured]
    if not ours:
        return _start_up_summary(shown)
    several = len({row.source for row in ours}) > 1
    names = {id(row): f"{row.workload} on {row.source}" if several else row.workload for row in ours}
    before = {names[id(row)]: 100 * (row.over_wall["INIT"] + row.over_wall["SETUP"]) for row in ours if row.mode == CPU}
    sentences = [
        f"Init and setup as a share of a program's wall time on the CPU: {least_and_most(before, '.0f', ' %')}."
    ]
    with_gpu = {names[id(row)]: row for row in ours if row.mode == GPU}
    if with_gpu:
        walls = {name: row.over_wall["WALL"] for name, row in with_gpu.items()}
        over = " ".join(mean_and_range(walls))
        sentences.append(f"Wall time with a GPU over that on the CPU, same batch and number of steps: {over}.")
        sentences.append(_comparison(with_gpu))
        theirs = {row.workload: row.over_wall["WALL"] for row in rows if row.mode == GPU and not row.measured}
        sentences += [f"Published: {least_and_most(theirs, '.2f')}."] if theirs else []
    return " ".join(sentences)


def _comparison(rows: Mapping[str, Row]) -> str:
    """Which programs are significantly faster or slower with a GPU."""
    if all(_answer(row.interval) == FASTER for row in rows.values()):
        return "All are faster with a GPU."
    answers: dict[str, list[str]] = {FASTER: [], SLOWER: [], UNDECIDED: [], UNTESTED: []}
    for name, row in rows.items():
        answers[_answer(row.interval)].append(f"{name} ({row.over_wall['WALL']:.2f})")
    return " ".join(f"{answer}: {listed(names)}." for answer, names in answers.items() if names)


def _answer(over_cpu: Interval | None) -> str:
    if over_cpu is None:
        return UNTESTED
    if over_cpu.low <= 1 <= over_cpu.high:
        return UNDECIDED
    return SLOWER if over_cpu.low > 1 else FASTER


def _start_up_summary(shown: Sequence[Launches]) -> str:
    """From time-limited or profiled runs: only what does not depend on the number of steps."""
    phase = drawn_phase(launches.phase for launches in shown)
    drawn = [launches for launches in shown if launches.phase == phase]
    seconds = {named(launches, drawn): sum(start_up(launches).values()) for launches in drawn}
    return (
        f"Start-up to the end of the first step: {least_and_most(seconds, '.1f', ' s')}. These runs were profiled or "
        "time-limited, so their total times are not comparable. Run `fathom repeat` for total times."
    )


def _notes() -> list[str]:
    printed = published.sections()
    missing = [name for name in published.op_percent() if (name, CPU) not in printed]
    mains = {workload: sections.main for (workload, mode), sections in printed.items() if mode == CPU}
    return [
        "INIT: imports and construction. SETUP: data, weights and the device. RUN: every step, warm-up included. "
        "MAIN: all three. WALL: the parent process's view, from the start of the program to its end.",
        "Values are means over launches, each a process of its own, as in the Minsky study, so that sections add up. "
        "Medians with intervals are in the finding on variance.",
        f"The interval of CPU+GPU/CPU is Welch's, from the variation between the launches of each mode; it needs "
        f"{LEAST_LAUNCHES} launches of each. A difference is significant where it excludes 1.",
        f"Published: {published.SOURCES['minsky_table2_sections']}; {published.MINSKY_MACHINE}, default numbers of "
        f"steps. It has no row for {listed(missing)}. Its programs ran other numbers of steps than ours, so start-up "
        "has another weight.",
        "Our INIT and MAIN include importing torch. In the study start-up lies outside MAIN, so these rows differ by "
        f"definition. Its MAIN over WALL on the CPU: {least_and_most(mains, '.2f')}. It says that start-up is almost "
        f"{published.MINSKY_START_PERCENT} % of the time of the smallest models, and that initialising all four GPUs, "
        f"of which it used one, took about {published.MINSKY_FOUR_GPUS_PERCENT} % of the smallest workload.",
    ]


def _imports_note(shown: Sequence[Launches]) -> list[str]:
    runs = [run for each in shown for run in each.runs]
    compiled = sum(COMPILED_ANEW in run.notes for run in runs)
    return [f"{compiled} of {len(runs)} launches: {COMPILED_ANEW}."] if compiled else []


def _limited_note(shown: Sequence[Launches]) -> list[str]:
    limited = [
        each for each in shown if any(run.spec.kind != "timed" or run.spec.budget_s is not None for run in each.runs)
    ]
    if not limited:
        return []
    return [
        f"{len(limited)} of {len(shown)} rows have seconds only: these runs were time-limited or profiled, so their "
        "total times are not comparable."
    ]
