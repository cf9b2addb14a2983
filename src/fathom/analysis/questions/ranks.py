"""Scaling over ranks: speed-up and efficiency in weak and strong scaling, and what keeps a step from being shorter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from fathom import published
from fathom.analysis.finding import Cell, Finding, Table, not_measured
from fathom.analysis.questions._rank_charts import LAWS, charts
from fathom.analysis.questions._rank_charts import PARTS as PART_NAMES
from fathom.analysis.questions.cores import is_imprecise
from fathom.analysis.rank_jobs import PARTS, Curve, Job, curves_of
from fathom.analysis.selection import counted
from fathom.analysis.statistics import Interval
from fathom.core.formatting import count, finite, in_percent, number, seconds
from fathom.core.ranks import strategy_shown
from fathom.core.record import Record

TITLE = "Ranks: how does training scale over several workers?"
ORDER = 111
RANKED = True
GAIN = ["speed-up", "speed-up from", "speed-up to", "efficiency (%)", "efficiency from (%)", "efficiency to (%)"]
MOST_SENTENCES = 4  # of single curves in a summary; of more it has ranges
STATEMENTS = [  # of the papers, beside which ours stand
    "Cookbook: larger models are easier to scale.",
    "Guide: synchronous training is recommended up to 40 GPUs; one slower unit makes all others idle.",
]


def analyse(records: Sequence[Record]) -> Finding:
    records = [record for record in records if record.spec.kind != "collectives"]
    curves, failed = curves_of(records), _failed(records)
    if not curves:
        reason = "every job failed" if failed else ""
        return not_measured("ranks", TITLE, "fathom scale --ranks 1,2", failed, reason)
    return Finding(
        question="ranks",
        title=TITLE,
        summary=_summary(curves),
        tables=[_scaling(curves), _parts(curves), _doubling(curves), _every_rank(curves)],
        charts=charts(curves),
        notes=[*_notes(), *failed],
    )


def _failed(records: Sequence[Record]) -> list[str]:
    failed = [record for record in records if record.outcome != "ok"]
    reasons = counted(
        f"{record.spec.workload}, {strategy_shown(record.spec.strategy or '')}, "
        f"{count(record.spec.ranks or 0, 'rank')}: {record.reason}"
        for record in failed
    )
    return [f"Not shown: failed jobs: {reasons}."] if failed else []


def _summary(curves: Sequence[Curve]) -> str:
    known = [(curve, found) for curve in curves if curve.widest.ranks > 1 and (found := curve.efficiency(curve.widest))]
    if not known:
        return _without_speedup(curves)
    known.sort(key=lambda each: -each[1].median)
    precise = [(curve, found) for curve, found in known if not is_imprecise(found)]
    if len(known) <= MOST_SENTENCES:
        sentences = [
            f"{curve.name}: efficiency {100 * found.median:.0f} % on {curve.widest.ranks} ranks{_cause(curve.widest)}."
            for curve, found in precise
        ]
    else:
        sentences = _ranges(precise)
    imprecise = [curve.name for curve, found in known if is_imprecise(found)]
    if imprecise:
        named = "; ".join(imprecise)  # names have commas
        sentences.append(f"Imprecise efficiency, with an interval wider than half of the value: {named}.")
    single = [curve.name for curve, found in known if (found.launches or 1) == 1]
    if single:
        whose = "" if len(single) == len(known) else f" ({'; '.join(single)})"
        sentences.append(f"One launch of the largest job{whose}: nothing is said of the next one.")
    return " ".join(sentences)


def _without_speedup(curves: Sequence[Curve]) -> str:
    """What was measured, where there is no job of one rank, or no other."""
    sentences = [f"{curve.name}, {_in_numbers(curve.widest)}." for curve in curves[:MOST_SENTENCES]]
    if len(curves) > MOST_SENTENCES:
        sentences.append(f"{count(len(curves) - MOST_SENTENCES, 'more job')} in the tables.")
    measured = {job.ranks for curve in curves for job in curve.jobs}
    lacking = "several ranks" if measured == {1} else "1 rank"
    wanted = ",".join(map(str, sorted({1, *(measured - {1} or {2})})))
    return " ".join([*sentences, f"A speed-up also needs a job of {lacking}: --ranks {wanted}."])


def _in_numbers(job: Job) -> str:
    """2 ranks: 50 steps of 8.5 ms, 3,760 items/s; compute 70 %, ..., of a step."""
    steps, rate = sum(len(run.step_s) for run in job.runs), job.items_per_s
    parts = {word: job.part_s(name) for name, word in PART_NAMES.items()}
    whole = sum(parts.values())
    shares = [f"{word} {100 * part / whole:.0f} %" for word, part in parts.items() if whole]
    rates = "" if rate is None else f", {number(rate)} items/s"
    spent = f"; {', '.join(shares)} of a step" if shares else ""
    return f"{count(job.ranks, 'rank')}: {count(steps, 'step')} of {seconds(job.step.median)}{rates}{spent}"


def _ranges(known: Sequence[tuple[Curve, Interval]]) -> list[str]:
    """One sentence for each strategy, scaling and number of ranks; known is in order, the best first."""
    groups: dict[str, list[tuple[Curve, Interval]]] = defaultdict(list)
    for curve, found in known:
        where = ", ".join(filter(None, [curve.strategy, curve.scaling, curve.apart]))
        groups[f"{where}, {curve.widest.ranks} ranks"].append((curve, found))
    sentences = []
    for name, same in groups.items():
        (best, high), (worst, low) = same[0], same[-1]
        least = f"{100 * low.median:.0f} % for {worst.workload}{_cause(worst.widest)}"
        most = "" if best is worst else f" to {100 * high.median:.0f} % for {best.workload}"
        sentences.append(f"{name}: efficiency {least}{most}.")
    return sentences


def _cause(job: Job) -> str:
    """The larger of the two parts of a step in which a rank does not compute: of all parts, as in the chart.

    The median step of the slowest rank is longer than the medians of the parts add up to.
    """
    whole = sum(map(job.part_s, PART_NAMES))
    name = max(("exposed_s", "wait_s"), key=job.part_s)
    share = job.part_s(name) / whole if whole else 0.0
    return f" ({PART_NAMES[name]}: {100 * share:.0f} % of a step)" if share >= 0.005 else ""


def _scaling(curves: Sequence[Curve]) -> Table:
    rows: list[list[Cell]] = []
    for curve in curves:
        for job in curve.jobs:
            rows.append(
                [
                    *(curve.workload, curve.machine, curve.strategy, curve.scaling),
                    *(job.ranks, job.threads, job.items_per_step),
                    1e3 * job.step.median,
                    *_gain(curve, job),
                    job.step.claim,
                    LAWS[curve.scaling],
                    in_percent(curve.serial),
                    curve.predicted(job.ranks),
                ]
            )
    columns = ["workload", "machine", "strategy", "scaling", "ranks", "cores each", "items/step", "step (ms)", *GAIN]
    columns += ["interval", "law", "serial fraction (%)", "speed-up by it"]
    return Table(title="Speed-up and efficiency", columns=columns, rows=rows, leading=True)


def _gain(curve: Curve, job: Job) -> list[Cell]:
    speedup, efficiency = curve.speedup(job), curve.efficiency(job)
    if speedup is None or efficiency is None:
        return [None] * len(GAIN)
    return [*speedup.cells(), *efficiency.cells(100)]


def _parts(curves: Sequence[Curve]) -> Table:
    rows: list[list[Cell]] = [
        [
            *(curve.workload, curve.machine, curve.strategy, curve.scaling, job.ranks),
            *(1e3 * job.part_s(name) for name in PARTS),
            job.wire_bytes / 1e6,
        ]
        for curve in curves
        for job in curve.jobs
    ]
    columns = ["workload", "machine", "strategy", "scaling", "ranks", "compute (ms)", "exposed communication (ms)"]
    columns += ["waiting (ms)", "hidden communication (ms)", "sent by a rank (MB)"]
    return Table(title="What a step is spent on, mean over the ranks", columns=columns, rows=rows)


def _every_rank(curves: Sequence[Curve]) -> Table:
    """Of the widest job of each curve, its last launch."""
    rows: list[list[Cell]] = []
    for curve in curves:
        last = max(curve.widest.runs, key=lambda run: run.started)
        for each in last.ranks.series if last.ranks else []:
            cores = None if each.cores is None else ", ".join(map(str, each.cores))
            times = [sum(getattr(each, name)) / max(1, len(each.step_s)) for name in ("step_s", *PARTS)]
            rows.append(
                [curve.name, each.rank, each.host, each.device, cores, *(finite(1e3 * value) for value in times)]
            )
    columns = ["job", "rank", "host", "device", "cores", "step (ms)", "compute (ms)", "exposed (ms)"]
    columns += ["waiting (ms)", "hidden (ms)"]
    return Table(title="Every rank of the largest jobs, mean over the steps", columns=columns, rows=rows)


def _doubling(curves: Sequence[Curve]) -> Table:
    """The guide's numbers beside ours: by how much the time of an item falls with twice the workers."""
    rows: list[list[Cell]] = [
        [framework, "n to 2n GPUs", percent, "published"] for framework, percent in published.doubling_percent().items()
    ]
    for curve in curves:
        gains = {job.ranks: found.median for job in curve.jobs if (found := curve.speedup(job))}
        for ranks, gain in gains.items():
            if (twice := gains.get(2 * ranks)) is not None:
                rows.append([curve.name, f"{ranks} to {2 * ranks} ranks", 100 * (1 - gain / twice), "measured"])
    columns = ["job", "workers", "less time for an item (%)", "source"]
    return Table(title="Doubling the workers: 50 % is ideal", columns=columns, rows=rows)


def _notes() -> list[str]:
    return [
        "Speed-up is items per second over those of one rank with the same number of cores; efficiency is speed-up "
        "over ranks. In strong scaling the global batch stays the same (Amdahl), in weak scaling each rank's "
        "(Gustafson); the serial fraction is fitted to the speed-ups. A step is that of the slowest rank; of "
        "asynchronous ranks, whose rates add up, the harmonic mean.",
        "Exposed communication is what a step waits for after its last gradient is ready and after the slowest rank "
        "has come as far; hidden communication runs while the rank computes, and is a part of compute. Bytes are those "
        "that the algorithm must send.",
        f"Published: {published.SOURCES['guide_doubling_gpus']}: training time with twice the GPUs. "
        + " ".join(STATEMENTS),
    ]
