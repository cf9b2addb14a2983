"""Which way of executing the same step is fastest, what it costs to start, and whether it gives the same results.

A trial is one process in which eager and another engine run in turns; a speed-up is the ratio within it. Launches of
the same trial are taken together, one value each.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from fathom.analysis.engine_trials import Launches, agrees, fastest, speedup, trials_of
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.selection import configuration, workload_order
from fathom.analysis.statistics import Interval, ratio_interval
from fathom.core.formatting import DASH, count, listed, number
from fathom.core.record import Record
from fathom.core.spec import EAGER
from fathom.core.trial import COMPARED_STEPS, FACTOR, FIRST_STEPS, FLOORS

TITLE = "How can the same work run faster?"
ORDER = 52
BUSY = 0.9  # of the step: a GPU that works as long has little to gain from another engine
COLUMNS = [
    *("workload", "phase", "engine", "eager step (ms)", "step (ms)", "times as fast", "95 % interval", "update alone"),
    *("start (s)", "pays back after (steps)", "GPU busy (%)", "eager busy (%)", "peak memory (GiB)", "J/step"),
    *("eager J/step", "difference", "agrees"),
]


def analyse(records: Sequence[Record]) -> Finding:
    trials = [record for record in records if record.spec.kind == "trial"]
    groups = _grouped([record for record in trials if record.outcome == "ok" and record.trial])
    refused = [record for record in trials if record.outcome != "ok"]
    if not groups:
        return not_measured("engines", TITLE, "fathom engines", [_refusals(refused)] if refused else [])
    tables = []
    for work, own in groups.items():
        rows = [group_row(runs) for runs in own]
        alarms = [(at, COLUMNS.index("agrees")) for at, row in enumerate(rows) if row[-1] != "yes"]
        title = f"Engines beside eager: {', '.join(work)}"
        tables.append(Table(title=title, columns=list(COLUMNS), rows=rows, leading=True, alarms=alarms))
    return Finding(
        question="engines",
        title=TITLE,
        summary=" ".join(_summary(work, own) for work, own in groups.items()),
        tables=[*tables, _best_table(groups)],
        charts=[_chart(work, own) for work, own in groups.items()],
        notes=[*_notes(), *([_refusals(refused)] if refused else [])],
    )


Work = tuple[str, str, str]  # machine, preset, precision


def _grouped(records: Sequence[Record]) -> dict[Work, list[Launches]]:
    """The launches of each trial, in the order of the suite, apart for each machine, preset and precision."""
    by_spec: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        by_spec[record.machine_label, configuration(record).id].append(record)
    groups: dict[Work, list[Launches]] = defaultdict(list)
    ordered = sorted(by_spec.values(), key=lambda runs: (workload_order(runs[0].spec.workload), runs[0].spec.phase))
    for runs in ordered:
        spec = runs[0].spec
        groups[runs[0].machine_label, spec.preset, spec.precision or DASH].append(runs)
    return groups


def row(record: Record) -> list[Cell]:
    """One trial under COLUMNS; a failed one says why in place of whether it agrees."""
    if record.trial is None:
        return [
            record.spec.workload,
            record.spec.phase,
            record.spec.engine,
            *[None] * (len(COLUMNS) - 4),
            record.reason,
        ]
    return group_row([record])


def group_row(runs: Launches) -> list[Cell]:
    spec, trials = runs[0].spec, trials_of(runs)
    faster = speedup(runs)
    updates = [trial.update_speedups for trial in trials if trial.update_speedups]
    disagreement = next((why for trial in trials if (why := trial.disagreement(spec.precision or "fp32"))), None)
    peak = _median([trial.engine.peak_device_bytes for trial in trials])
    return [
        *(_name(runs[0]), spec.phase, spec.engine),
        *(_ms([trial.eager.step_s for trial in trials]), _ms([trial.engine.step_s for trial in trials])),
        *(faster.median, _bounds(faster), ratio_interval(updates).median if updates else None),
        _median([trial.engine.preparation_s for trial in trials]),
        _median([trial.pays_back_after for trial in trials]) if faster.low > 1 else None,  # else no gain is shown
        *(_percent([trial.engine.busy for trial in trials]), _percent([trial.eager.busy for trial in trials])),
        None if peak is None else peak / 2**30,
        *(_median([trial.engine.step_j for trial in trials]), _median([trial.eager.step_j for trial in trials])),
        max((found for trial in trials if (found := trial.difference()) is not None), default=None),
        "yes" if disagreement is None else f"no: {disagreement}",
    ]


def _fastest(groups: Sequence[Launches]) -> dict[tuple[str, str], Launches]:
    """Workload and phase -> the trial of the fastest engine, where one is faster than eager."""
    rivals: dict[tuple[str, str], list[Launches]] = defaultdict(list)
    for runs in groups:
        rivals[_name(runs[0]), runs[0].spec.phase].append(runs)
    return {key: best for key, own in rivals.items() if (best := fastest(own)) is not None}


def _name(record: Record) -> str:
    """The workload, with what is not the preset's or the machine's own choice."""
    spec = record.spec
    changed = [f"batch {spec.batch}"] if spec.batch is not None else []
    changed += [count(spec.threads, "thread")] if spec.threads is not None else []
    changed += [f"data {spec.data}"] if spec.data is not None else []
    return ", ".join([spec.workload, *changed, *(f"{name}={value}" for name, value in spec.options.items())])


def _summary(work: Work, groups: Sequence[Launches]) -> str:
    best = _fastest(groups)
    sentences = []
    for phase, words in (("train", "training"), ("infer", "inference")):
        names = dict.fromkeys(_name(runs[0]) for runs in groups if runs[0].spec.phase == phase)
        faster = {name: best[name, phase] for name in names if (name, phase) in best}
        if not names:
            continue
        gains = [f"{number(speedup(runs).median)} for {name} ({runs[0].spec.engine})" for name, runs in faster.items()]
        told = f"{len(faster)} of {count(len(names), 'configuration')} in {words}"
        sentences.append(f"{told}: times as fast as eager {listed(gains)}." if gains else f"{told}.")
    wrong = sum(not agrees(runs) for runs in groups)
    doubt = f" {count(wrong, 'trial')} gave other results than eager." if wrong else ""
    machine, preset, precision = work
    where = f"On {machine}, preset {preset}, {precision}"
    return f"{where}, another engine is faster than eager for {' '.join(sentences)}{doubt}"


def _best_table(groups: dict[Work, list[Launches]]) -> Table:
    """Eager and the best engine side by side."""
    rows: list[list[Cell]] = []
    for work, own in groups.items():
        best = _fastest(own)
        for key in dict.fromkeys((_name(runs[0]), runs[0].spec.phase) for runs in own):
            some = next(runs for runs in own if (_name(runs[0]), runs[0].spec.phase) == key)
            runs = best.get(key)
            eager = _ms([trial.eager.step_s for trial in trials_of(runs or some)])
            own_cells: list[Cell] = [EAGER, eager, 1.0, _percent([t.eager.busy for t in trials_of(some)])]
            if runs is not None:
                trials = trials_of(runs)
                step, busy = _ms([t.engine.step_s for t in trials]), _percent([t.engine.busy for t in trials])
                own_cells = [runs[0].spec.engine, step, speedup(runs).median, busy]
            rows.append([*work, *key, eager, *own_cells])
    columns = ["machine", "preset", "precision", "workload", "phase", "eager step (ms)", "best engine", "its step (ms)"]
    return Table(title="Eager and the best engine", columns=[*columns, "times as fast", "GPU busy (%)"], rows=rows)


def _chart(work: Work, groups: Sequence[Launches]) -> Chart:
    engines = list(dict.fromkeys(runs[0].spec.engine for runs in groups))
    names = list(dict.fromkeys(f"{_name(runs[0])} {runs[0].spec.phase}" for runs in groups))
    found = {(runs[0].spec.engine, f"{_name(runs[0])} {runs[0].spec.phase}"): speedup(runs).median for runs in groups}
    series = [Series(name=engine, x=names, y=[found.get((engine, each)) for each in names]) for engine in engines]
    return Chart(
        kind="bar",
        title=f"Speed-up over eager: {', '.join(work)}",
        x_title="workload and phase",
        y_title="times as fast as eager",
        series=series,
        log_y=True,
    )


def _notes() -> list[str]:
    floors = ", ".join(f"{floor:g} in {precision}" for precision, floor in FLOORS.items())
    return [
        "A trial is one process: eager and the engine run in turns, on equal batches from equal weights. A single "
        "trial's interval holds within that process.",
        f"Start is what the first {FIRST_STEPS} steps take beyond as many later ones: compilation, capture, export.",
        f"Agreement: the losses of {COMPARED_STEPS} steps, or the outputs of the first inference step, differ from "
        f"eager's by at most {FACTOR:g} times what other rounding changes in eager itself (other last digits of the "
        f"weights; fp32 in place of a lower precision), or by {floors}, relative.",
        "Energy of a trial is counted over two seconds, in records of earlier versions over turns of some hundred "
        "milliseconds; `fathom energy NAME --engines` meters windows that are long enough to be valid.",
        f"GPU busy is the time with at least one kernel or copy running, of steps that are not waited for; at "
        f"{100 * BUSY:.0f} % the host is no longer the limit.",
    ]


def _refusals(refused: Sequence[Record]) -> str:
    told = dict.fromkeys(f"{each.spec.workload} {each.spec.phase}: {each.reason}" for each in refused)
    return f"Not measured: {'; '.join(told)}."


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _ms(seconds: Sequence[float]) -> float:
    return 1000 * statistics.median(seconds)


def _percent(shares: Sequence[float | None]) -> float | None:
    middle = _median(shares)
    return None if middle is None else 100 * min(1.0, middle)


def _bounds(interval: Interval) -> str:
    return f"{number(interval.low)} – {number(interval.high)}"
