"""What energy does each workload take, what would take less, and which ops take it? Answers the 2018 power study.

Energy to solution is the integral of power over time; the energy-delay product is energy times time. Idle power is
measured apart and never subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence

from fathom import published
from fathom.analysis.energy_runs import INVALID, LARGEST_SPREAD, VALID, EnergyRuns, in_words, joules, labels, metered
from fathom.analysis.finding import Cell, Chart, Finding, Table, not_measured
from fathom.analysis.learning_runs import Run, training_runs
from fathom.analysis.limits import judge
from fathom.analysis.questions._op_energy import op_energy
from fathom.analysis.questions._power_trace import power_charts, section_table, sweep_chart, traced
from fathom.analysis.questions._time_energy import (
    NO_TIME_LOST,
    Capped,
    Sweep,
    cap_charts,
    cap_sentence,
    cap_table,
    caps,
    choice_table,
    found_sweeps,
    plane,
    published_table,
    recommendation_table,
    sweep_sentences,
)
from fathom.analysis.selection import capped, completeness, configuration, finished_attempts, select, told_apart
from fathom.core.energy import LARGEST_GAP, LEAST_S, LEAST_UPDATES
from fathom.core.formatting import count, in_percent, least_and_most
from fathom.core.record import Record

TITLE = "What energy does each workload take?"
ORDER = 55
SHOWN_TRACES = 16  # of power: the eight workloads, training and inference


def analyse(records: Sequence[Record]) -> Finding:
    found = metered(records)
    trained = _trained(records)
    if not found and not trained:
        return not_measured("energy", TITLE, "fathom energy NAME", reason="no run is metered" if records else "")
    pairs, choices, ops = caps(found, _limits(records)), found_sweeps(found), op_energy(found, records)
    tables = [*([_energy_table(found)] if found else []), *([_training_table(trained)] if trained else [])]
    tables += [recommendation_table(choices)] if any(sweep.recommended() for sweep in choices) else []
    tables += [choice_table(sweep) for sweep in choices]
    tables += [cap_table(pairs)] if pairs else []
    drawn = _drawn(found)
    return Finding(
        question="energy",
        title=TITLE,
        summary=" ".join(
            [
                _summary(found, trained),
                *sweep_sentences(choices),
                *_caps_in_words(pairs),
            ]
        ),
        tables=[*tables, published_table(pairs), *ops.tables(), *(section_table(runs) for runs in drawn)],
        charts=[*_sweep_charts(choices), *cap_charts(pairs), *_traces(drawn)],
        notes=[*_notes(found), *(_training_notes() if trained else []), *(ops.notes if found else [])],
    )


def _summary(found: Sequence[EnergyRuns], trained: Sequence[Run]) -> str:
    sentences = []
    if found:
        measured = [runs for runs in found if not runs.estimated]
        valid = sum(runs.verdict == VALID for runs in measured)
        sound = [runs for runs in found if runs.verdict != INVALID]
        named = _named([runs for runs in sound or found if not capped(runs.runs[0])])
        guesses = {runs.estimated for runs in named.values()}
        guess = {(True,): ", estimated", (False, True): ", partly estimated"}.get(tuple(sorted(guesses)), "")
        guess += "" if sound else ", by no valid measurement"
        per_item = {name: runs.per_item_j for name, runs in named.items() if runs.knows_items}
        watts = {name: runs.mean_w for name, runs in named.items()}
        if per_item:
            sentences.append(f"Joules per item{guess}: {least_and_most(per_item, '.3g')}.")
        if named:
            sentences.append(f"Average power{guess}: {least_and_most(watts, '.0f', ' W')}.")
        if measured:
            verb = "is" if len(measured) == 1 else "are"
            sentences.append(f"{valid} of {count(len(measured), 'measurement')} {verb} valid.")
        if len(measured) < len(found):
            sentences.append(f"{count(len(found) - len(measured), 'estimate')}, without a meter.")
    if trained:
        spent = [f"{joules(_to_target(run))} ({run.name})" for run in sorted(trained, key=_to_target)]
        sentences.append(f"Training to the target takes {' to '.join(dict.fromkeys((spent[0], spent[-1])))}.")
    return " ".join(sentences)


def _named(found: Sequence[EnergyRuns]) -> dict[str, EnergyRuns]:
    """Each by its workload and phase, and by its machine and settings where there are several."""
    several = len({each.machine for each in found}) > 1
    rivals: dict[str, list[EnergyRuns]] = {}
    for runs in found:
        where = f" on {runs.machine}" if several else ""
        rivals.setdefault(f"{runs.workload} {runs.phase}{where}", []).append(runs)
    named = [
        (f"{name}, {label}" if label else name, runs)
        for name, own in rivals.items()
        for label, runs in zip(labels(own), own, strict=True)
    ]
    names = told_apart([(name, configuration(runs.runs[0])) for name, runs in named])  # presets, threads, options
    return {name: runs for name, (_, runs) in zip(names, named, strict=True)}


def _caps_in_words(pairs: Sequence[Capped]) -> list[str]:
    return [cap_sentence(pairs)] if pairs else []


def _energy_table(found: Sequence[EnergyRuns]) -> Table:
    rows = [_cells(runs) for runs in found]
    columns = [
        "workload",
        "phase",
        "machine",
        "preset",
        "batch",
        "power cap (W)",
        "clock cap (MHz)",
        "meters",
        "trials",
    ]
    columns += ["energy per item (J)", "energy per step (J)", "window (s)", "energy of the window (J)"]
    columns += ["average power (W)", "peak power (W)", "idle power (W)", "EDP per step (J s)"]
    columns += ["integrated power against counter (%)", "spread over trials (%)", "verdict"]
    kept = [index for index in range(len(columns)) if any(row[index] is not None for row in rows)]
    alarms = [(row, len(kept) - 1) for row, runs in enumerate(found) if runs.verdict == INVALID]
    return Table(
        title="Energy of every workload",
        columns=[columns[index] for index in kept],
        rows=[[row[index] for index in kept] for row in rows],
        leading=True,
        alarms=alarms,
    )


def _cells(runs: EnergyRuns) -> list[Cell]:
    spec = runs.spec
    meters = dict.fromkeys(f"{part.meter} of {part.scope}" for energy in runs.energies for part in energy.parts)
    return [
        *(runs.workload, runs.phase, runs.machine, spec.preset, spec.batch, spec.power_cap_w, spec.clock_cap_mhz),
        *(", ".join(meters), len(runs.runs)),
        *(runs.per_item_j if runs.knows_items else None, runs.per_step_j, runs.window_s, runs.total_j),
        *(runs.mean_w, runs.peak_w, runs.idle_w, runs.step_edp),
        *(in_percent(runs.gap), in_percent(runs.spread), in_words(runs)),
    ]


def _trained(records: Sequence[Record]) -> list[Run]:
    """Training runs that reached their target and were metered, on one machine that they had to themselves."""
    training = [record for record in records if record.spec.kind == "training"]
    runs = training_runs(finished_attempts(training))
    return [run for run in runs if run.energy_to_target is not None and not run.moved and not run.shared]


def _to_target(run: Run) -> float:
    return run.energy_to_target or 0.0


def _training_table(trained: Sequence[Run]) -> Table:
    """What was spent until the target was reached; most recipes go on to the end of their schedule."""
    rows: list[list[Cell]] = []
    for run in trained:
        learning, point, spent = run.learning, run.at_target, _to_target(run)
        seconds = point.seconds if point else learning.seconds
        rows.append(
            [
                *(run.name, run.record.spec.seed, run.record.machine_label, learning.metered, learning.quality),
                *(spent / 1e3, seconds, spent / seconds, spent / 1e3 * seconds),
                *(None if learning.energy_j is None else learning.energy_j / 1e3, learning.seconds),
            ]
        )
    columns = ["task", "seed", "machine", "metered by", "quality", "energy to target (kJ)", "time to target (s)"]
    columns += ["average power (W)", "EDP (kJ s)", "energy of the whole run (kJ)", "whole run (s)"]
    return Table(title="Energy to target quality", columns=columns, rows=rows)


def _training_notes() -> list[str]:
    return [
        "Energy to target quality has a row for every metered run that reached its target, on one machine and with no "
        "other program on its GPU: several for a seed that ran several times."
    ]


def _limits(records: Sequence[Record]) -> dict[tuple[str, str, str], str]:
    """What limits each workload, phase and machine, as the roofline says."""
    groups = select(records, profiled=True).groups
    return {(group.workload, group.phase, group.machine): judge(group).name for group in groups}


def _drawn(found: Sequence[EnergyRuns]) -> list[EnergyRuns]:
    """Of each workload, phase and machine the most complete configuration that has a trace of more than its steps."""
    best: dict[tuple[str, str, str], EnergyRuns] = {}
    for runs in found:
        key = (runs.workload, runs.phase, runs.machine)
        better = key not in best or completeness(runs.runs[0]) > completeness(best[key].runs[0])
        if better and traced(runs.energies[0]) and not capped(runs.runs[0]):
            best[key] = runs
    return list(best.values())[:SHOWN_TRACES]


def _sweep_charts(choices: Sequence[Sweep]) -> list[Chart]:
    planes = [plane(sweep) for sweep in choices]
    traces = [sweep_chart(sweep.name, sweep.runs, sweep.labels) for sweep in choices]
    return [*planes, *(trace for trace in traces if trace is not None)]


def _traces(drawn: Sequence[EnergyRuns]) -> list[Chart]:
    return [chart for runs in drawn for chart in power_charts(runs)]


def _notes(found: Sequence[EnergyRuns]) -> list[str]:
    notes = [
        "Energy is the integral of power over the measured steps (energy to solution, ETS), summed over devices. EDP "
        "is energy times time; as windows differ in length, it is given for a step or an item, which are the same work "
        "in every trial. Idle power is measured before anything runs and is not subtracted. Values are means over "
        "trials.",
        f"A measurement is VALID if every window has at least {LEAST_S:g} s and {LEAST_UPDATES} updates of its "
        f"counters, integrated power is within {100 * LARGEST_GAP:g} % of each counter, no other program disturbed it, "
        f"and trials are within {100 * LARGEST_SPREAD:g} % of each other (greatest less least, of the mean).",
        f"No time is lost below a cap if the step takes at most {100 * NO_TIME_LOST:g} % longer. Limited by: the "
        f"verdict of the roofline. Published: {published.SOURCES['power_study_statements']}.",
    ]
    if any(runs.estimated for runs in found):
        notes.append("Estimated: no meter was there; power is that of a model of the processor's utilisation.")
    return notes
