"""Step time of the same networks in several frameworks over threads, with Table I of the guide beside it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fathom import published
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.ratio import ratio
from fathom.analysis.statistics import Interval
from fathom.analysis.step_time import settled_steps, step_time
from fathom.core.formatting import count, listed, number, seconds
from fathom.core.framework import FrameworkRecord

TITLE = "Frameworks and threads: how fast is the same network elsewhere?"
ORDER = 107
FRAMEWORKS = True  # answered from framework records
BASE = "torch"  # what other frameworks are compared with
PUBLISHED_NETWORK, PUBLISHED_BATCH = "fcn5", 64  # of the guide's Table I, which is of training
PUBLISHED_MACHINE = "Core i7-3820, 4 cores, 2016"

Key = tuple[str, str, str, int, str]  # machine, network, phase, batch, preset: rows that can be compared


@dataclass(frozen=True)
class Group:
    """One cell: its processes on one machine."""

    framework: str
    threads: int
    all_runs: list[FrameworkRecord]

    @property
    def runs(self) -> list[FrameworkRecord]:
        """Those that count: disturbed or failed ones only where there are no others."""
        timed = [run for run in self.all_runs if run.step_s]
        return [run for run in timed if not run.disturbed] or timed or self.all_runs

    @property
    def outcome(self) -> str:
        """Wrong where any process was, a disturbed one too: an output that is equal only sometimes is not equal."""
        found = {run.outcome for run in self.runs} | {run.outcome for run in self.all_runs if run.outcome == "wrong"}
        return next(name for name in ("wrong", "ok", "failed", "not installed") if name in found)

    @property
    def reason(self) -> str | None:
        return next((run.reason for run in reversed(self.all_runs) if run.outcome == self.outcome), None)

    @property
    def timed(self) -> list[FrameworkRecord]:
        return [run for run in self.runs if run.step_s]

    @property
    def step(self) -> Interval | None:
        return step_time(self.timed) if self.timed else None

    @property
    def launches(self) -> list[list[float]]:
        return [settled_steps(run) for run in self.timed]


def analyse(records: Sequence[FrameworkRecord]) -> Finding:
    rows = _rows(records)
    if not any(group.outcome in ("ok", "wrong") for groups in rows.values() for group in groups):
        failed = [f"Failed: {run.spec}: {run.reason}." for run in records if run.outcome == "failed"]
        return not_measured("frameworks", TITLE, "fathom frameworks", failed[:10])
    return Finding(
        question="frameworks",
        title=TITLE,
        summary=_summary(rows),
        tables=[_matrix(rows), *_beside_published(rows), _cells(rows), _settings(rows)],
        charts=_charts(rows),
        notes=_notes(rows),
    )


def _rows(records: Sequence[FrameworkRecord]) -> dict[Key, list[Group]]:
    """Cells by machine, network, phase and batch. A disturbed or failed process counts where there is no better one."""
    found: dict[Key, dict[tuple[str, int], list[FrameworkRecord]]] = defaultdict(lambda: defaultdict(list))
    labels = _machine_labels(records)
    for record in sorted(records, key=lambda each: each.started):
        spec = record.spec
        key = labels[record.machine.identity], spec.network, spec.phase, spec.batch, spec.preset
        found[key][spec.framework, spec.threads].append(record)
    for cells in found.values():
        for runs in cells.values():
            runs[:] = _newest_version(runs)
    rows = {}
    for key in sorted(found, key=lambda each: (each[0], each[1], each[2] != "train", *each[3:])):
        groups = [Group(name, threads, runs) for (name, threads), runs in found[key].items()]
        here = {group.framework for group in groups if group.outcome != "not installed"}
        kept = [group for group in groups if group.outcome != "not installed" or group.framework not in here]
        rows[key] = sorted(kept, key=lambda group: (group.framework != BASE, group.framework, group.threads))
    return rows


def _newest_version(runs: Sequence[FrameworkRecord]) -> list[FrameworkRecord]:
    """Without processes that timed an older version; what was not timed has no version to compare."""
    newest = next((run.versions for run in reversed(runs) if run.step_s), {})
    return [run for run in runs if not run.step_s or run.versions == newest]


def _machine_labels(records: Iterable[FrameworkRecord]) -> dict[tuple[object, ...], str]:
    """Two machines with the same processor are numbered."""
    labels: dict[tuple[object, ...], str] = {}
    for machine in (record.machine for record in records):
        if machine.identity not in labels:
            same = sum(label.startswith(machine.cpu.label) for label in labels.values())
            labels[machine.identity] = machine.cpu.label + (f" ({same + 1})" if same else "")
    return labels


def _thread_counts(groups: Iterable[Group]) -> list[int]:
    return sorted({group.threads for group in groups if group.outcome != "not installed"})


def _name(key: Key, rows: dict[Key, list[Group]]) -> str:
    """fcn5 train; with the batch, preset and machine where these tell rows apart."""
    machine, network, phase, batch, preset = key
    alike = [each for each in rows if each[:3] == key[:3]]
    name = f"{network} {phase}" + (f", batch {batch}" if len({each[3] for each in alike}) > 1 else "")
    name += f", {preset}" if preset != "paper" else ""
    return name + (f" on {machine}" if len({each[0] for each in rows}) > 1 else "")


def _summary(rows: dict[Key, list[Group]]) -> str:
    fastest = []
    for key, groups in rows.items():
        good = [group for group in groups if group.outcome == "ok"]
        if not good:
            continue
        most = max(group.threads for group in good)
        ranked = sorted((group for group in good if group.threads == most), key=_median)
        fastest.append(f"{_name(key, rows)}: {_winner(ranked)} at {count(most, 'thread')}")
    wrong = sum(group.outcome == "wrong" for groups in rows.values() for group in groups)
    sentences = [f"Fastest: {'; '.join(fastest)}."] if fastest else []
    if wrong:
        sentences.append(f"{count(wrong, 'cell')} gave other outputs than the reference and cannot win.")
    timed = [run for groups in rows.values() for group in groups for run in group.timed]
    if disturbed := sum(run.disturbed for run in timed):
        sentences.append(f"{disturbed} of these {len(timed)} processes were disturbed by other programs.")
    return " ".join(sentences)


def _median(group: Group) -> float:
    assert group.step is not None
    return group.step.median


def _winner(ranked: Sequence[Group]) -> str:
    """The fastest, and whichever cannot be told from it by these processes."""
    best = ranked[0]
    if len(ranked) == 1:
        return f"{best.framework} ({seconds(_median(best))}, the only one)"
    equal = [each for each in ranked[1:] if not ratio(best.launches, each.launches).significant]
    if equal:
        names = listed([each.framework for each in equal])
        return f"{best.framework} ({seconds(_median(best))}; no significant difference from {names})"
    times = _median(ranked[1]) / _median(best)
    return f"{best.framework} ({seconds(_median(best))}, {number(times)} times as fast as {ranked[1].framework})"


def _matrix(rows: dict[Key, list[Group]]) -> Table:
    """One row per framework, one column per number of threads; what is no number says why."""
    counts = _thread_counts(group for groups in rows.values() for group in groups)
    lines: list[list[Cell]] = []
    alarms = []
    for key, groups in rows.items():
        at = {(group.framework, group.threads): group for group in groups}
        for name in dict.fromkeys(group.framework for group in groups):
            own = [group for group in groups if group.framework == name]
            cells: list[Cell] = [_shown(at.get((name, threads)) or _absent(own)) for threads in counts]
            alarms += [(len(lines), 3 + n) for n, cell in enumerate(cells) if cell in ("wrong", "failed")]
            lines.append([_name(key, rows), name, key[3], *cells, _speedup(own), _over_base(own, at)])
    columns = ["network", "framework", "batch", *(f"{count(n, 'thread')} (ms)" for n in counts)]
    columns += ["speed-up", f"time over {BASE}"]
    return Table(title="Step time by framework and threads", columns=columns, rows=lines, leading=True, alarms=alarms)


def _absent(own: Sequence[Group]) -> Group | None:
    """A framework that is not installed has one record, whatever the number of threads."""
    return next((group for group in own if group.outcome == "not installed"), None)


def _shown(group: Group | None) -> Cell:
    if group is None:
        return None
    if group.outcome != "ok":
        return group.outcome
    assert group.step is not None
    return 1e3 * group.step.median


def _speedup(own: Sequence[Group]) -> float | None:
    """From one thread to the most."""
    good = {group.threads: _median(group) for group in own if group.outcome == "ok"}
    return good[1] / good[max(good)] if 1 in good and len(good) > 1 else None


def _over_base(own: Sequence[Group], at: dict[tuple[str, int], Group]) -> float | None:
    """At the most threads that both ran with."""
    both = [
        group
        for group in own
        if group.outcome == "ok" and (base := at.get((BASE, group.threads))) and base.outcome == "ok"
    ]
    if not both:
        return None
    widest = max(both, key=lambda group: group.threads)
    return _median(widest) / _median(at[BASE, widest.threads])


def _published_rows(rows: dict[Key, list[Group]]) -> dict[Key, list[Group]]:
    """Our rows of the published network, phase and batch at its published size."""
    wanted = (PUBLISHED_NETWORK, "train", PUBLISHED_BATCH, "paper")
    return {key: groups for key, groups in rows.items() if key[1:] == wanted}


def _beside_published(rows: dict[Key, list[Group]]) -> list[Table]:
    """Table I of the guide and our rows of the same network, phase and batch; nothing where there are none."""
    ours, theirs = _published_rows(rows), published.thread_seconds()
    if not ours:
        return []
    counts = sorted(
        {*_thread_counts(g for groups in ours.values() for g in groups), *(n for t in theirs.values() for n in t)}
    )
    lines: list[list[Cell]] = [
        [name, PUBLISHED_MACHINE, "published", *(times.get(n) for n in counts)] for name, times in theirs.items()
    ]
    for (machine, *_), groups in ours.items():
        for name in dict.fromkeys(group.framework for group in groups if group.outcome == "ok"):
            at = {g.threads: _median(g) for g in groups if g.framework == name and g.outcome == "ok"}
            lines.append([name, machine, "measured", *(at.get(n) for n in counts)])
    columns = ["framework", "machine", "source", *(f"{count(n, 'thread')} (s)" for n in counts)]
    title = f"Table I of the guide beside ours: training step of {PUBLISHED_NETWORK}, minibatch of {PUBLISHED_BATCH}"
    return [Table(title=title, columns=columns, rows=lines)]


def _cells(rows: dict[Key, list[Group]]) -> Table:
    lines: list[list[Cell]] = []
    for key, groups in rows.items():
        for group in groups:
            step, run = group.step, group.runs[-1]
            times: list[float | None] = step.cells(1e3) if step else [None] * 3
            lines.append(
                [
                    _name(key, rows),
                    group.framework,
                    group.threads if group.outcome != "not installed" else None,
                    len(run.cpus) or None,
                    *times,
                    step.claim if step else None,
                    _middle(each.cores_used for each in group.timed),
                    _middle(each.first_step_s for each in group.timed),
                    _middle(each.build_s for each in group.timed),
                    max((each.error for each in group.timed if each.error is not None), default=None),
                    run.tolerance,
                    group.outcome if group.outcome == "ok" else f"{group.outcome}: {group.reason}",
                ]
            )
    columns = ["network", "framework", "threads", "CPUs", "step (ms)", "from (ms)", "to (ms)", "interval", "cores used"]
    columns += ["first step (s)", "build (s)", "error", "tolerance", "result"]
    alarms = [(n, len(columns) - 1) for n, line in enumerate(lines) if str(line[-1]).startswith(("wrong", "failed"))]
    return Table(title="Every cell", columns=columns, rows=lines, alarms=alarms)


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _settings(rows: dict[Key, list[Group]]) -> Table:
    """What each framework reports of its threads, with the most that it ran with."""
    widest: dict[str, FrameworkRecord] = {}
    for group in sorted((g for groups in rows.values() for g in groups), key=lambda group: group.threads):
        for run in group.timed:
            widest[group.framework] = run
    lines: list[list[Cell]] = [
        [
            name,
            ", ".join(f"{package} {version}" for package, version in run.versions.items()),
            run.spec.threads,
            ", ".join(f"{setting} {value}" for setting, value in run.settings.items()),
        ]
        for name, run in sorted(widest.items(), key=lambda item: (item[0] != BASE, item[0]))
    ]
    return Table(title="Versions and settings", columns=["framework", "versions", "threads", "settings"], rows=lines)


def _charts(rows: dict[Key, list[Group]]) -> list[Chart]:
    charts = []
    for key, groups in rows.items():
        good = [group for group in groups if group.outcome == "ok"]
        series = []
        for name in dict.fromkeys(group.framework for group in good):
            own = [group for group in good if group.framework == name]
            series.append(
                Series(name=name, x=[group.threads for group in own], y=[1e3 * _median(group) for group in own])
            )
        if key in _published_rows(rows):
            for name, times in published.thread_seconds().items():
                values = [1e3 * value for value in times.values()]
                series.append(Series(name=f"{name}, {PUBLISHED_MACHINE}", x=list(times), y=values, role="published"))
        if series:
            title = f"{_name(key, rows)}: step time over threads"
            axes = {"x_title": "threads", "y_title": "step (ms)", "unit": "ms", "log_x": True, "log_y": True}
            charts.append(Chart(kind="line", title=title, series=series, **axes))  # type: ignore[arg-type]
    return charts


def _notes(rows: dict[Key, list[Group]]) -> list[str]:
    groups = [group for each in rows.values() for group in each]
    notes = [
        f"Measured on {listed(sorted({machine for machine, *_ in rows}))}. Each process is fresh, is bound to as many "
        "CPUs as it has threads (one per core as far as there are cores), and takes weights and inputs from one seeded "
        "set of arrays. Processes of all cells are interleaved. Step times are medians after warm-up, with a 95 % "
        "interval over processes; of a single process it holds within that process.",
        "Outputs are checked against PyTorch in float64: of inference the largest difference of logits over the "
        "largest logit; of training the largest difference of the first three losses over the largest change of the "
        "loss, whose tolerance allows for the rounding of float32. A cell beyond its tolerance is wrong.",
        "Cores used is CPU time over wall time of the timed steps. XLA has no setting for threads: on JAX, the binding "
        "alone limits them. Steps are timed as a user calls them: train_on_batch and predict_on_batch in Keras, "
        "InferenceSession.run, InferRequest.infer, an eager module in PyTorch.",
        f"Published: {published.SOURCES['guide_table1_threads']}, from Shi et al., arXiv:1608.07249. It names neither "
        "the layers nor the versions; here the network has the layers of that study's published code (FCN-5).",
    ]
    for outcome, word in (("not installed", "Not shown"), ("failed", "Failed"), ("wrong", "Wrong")):
        found = dict.fromkeys(f"{group.framework}: {group.reason}" for group in groups if group.outcome == outcome)
        notes += [f"{word}: {each}." for each in list(found)[:10]]
    return notes
