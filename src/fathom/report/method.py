"""How the numbers of a report were measured, as far as the records themselves say."""

from __future__ import annotations

from collections.abc import Sequence

from fathom.analysis.selection import bounded_percent, outside_bounds
from fathom.core import formatting
from fathom.core.record import SLOWDOWN, Profile, Record


def outside_percent(profile: Profile | None) -> str | None:
    """The share of a step that is in no op, such as "31 to 47"; None without ops."""
    return bounded_percent(*outside_bounds(profile)) if profile and profile.op_s else None


def method(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Short paragraphs, each with a heading; step timing is described where some steps were timed."""
    timed = [record for record in records if record.spec.kind != "training"]
    of_steps = [
        ("Clocks", _clocks(timed)),
        ("Medians and intervals", _medians(timed)),
        ("Separate passes", _passes(timed)),
        ("What adds up", _sums(timed)),
    ]
    return [
        *(of_steps if timed or not records else []),
        ("Data", _data(records)),
        (
            "What is missing",
            "A dash is a value that was not measured, never a zero. A failed run is listed with its reason; its "
            "times are not shown as results. One multiply-accumulate counts as two FLOP.",
        ),
    ]


def _clocks(records: Sequence[Record]) -> str:
    kinds = {record.device.split(":")[0] for record in records}
    sentences = []
    if kinds - {"cpu"}:
        sentences.append(
            "On an accelerator, step times come from events on the device's own clock, read after the last step: the "
            "host does not wait between steps, and a launch is not mistaken for the work it started."
        )
    if "cpu" in kinds or not sentences:
        sentences.append("On a CPU, steps are timed with the processor's monotonic clock.")
    return " ".join(sentences)


def _medians(records: Sequence[Record]) -> str:
    counts = [len(record.step_s) for record in records if record.step_s]
    how_many = f" ({formatting.span(counts)} per run)" if counts else ""
    budgets = {record.spec.budget_s for record in records if record.spec.budget_s}
    stop = (
        " A run stops when the median of its process is known to 1 %, or its time budget is spent; its notes say which."
        if budgets
        else ""
    )
    return (
        f"A step time is the median of the timed steps{how_many} after warm-up. Warm-up ends at the last detected "
        "change point, within the first third of the steps; a run that changes later is unsteady, all of its steps "
        "count, and the medians before and after are given. The 95 % interval of one launch allows for the "
        "correlation of its steps and holds within this process; that of several launches is over launches, and "
        f"holds for the machine. Warm-up steps are kept in the record. Outliers are shown, not dropped.{stop}"
    )


def _passes(records: Sequence[Record]) -> str:
    factors = [record.profile.slowdown for record in records if record.profile and record.profile.slowdown]
    text = "Timing and profiling are separate passes: a profiled step is never a timed step. "
    if not factors:
        return text + "No run of this report has both a profiled and an unprofiled pass."
    return text + (
        "The profiler's cost is measured in the same process. Profiled over unprofiled step time: "
        f"{formatting.span(factors)}. Below {SLOWDOWN} means the timing was disturbed. The table of all runs has each "
        "value."
    )


def _sums(records: Sequence[Record]) -> str:
    bounds = [outside_bounds(record.profile) for record in records if record.profile and record.profile.op_s]
    text = (
        "The times of a step's ops and the time outside them add up to the unprofiled step. A backward op is credited "
        "to the layer whose forward made it. On a GPU, op time is kernel time, and outside is the time in which no "
        "kernel ran. On a CPU, what the profiler itself takes is in no share; as it is not known exactly where it "
        "was spent, time outside ops is a range. "
    )
    if not bounds:
        return text
    most = bounded_percent(min(low for low, _ in bounds), max(high for _, high in bounds))
    return text + f"Outside ops: {most} % of a step, over all runs."


def _data(records: Sequence[Record]) -> str:
    own = sum(record.spec.source not in ("workload", "ranks") for record in records)
    records = [record for record in records if record.spec.source == "workload"]
    text = f"{formatting.count(own, 'run')} had batches of the user's own." if own else ""
    return " ".join(filter(None, [_workload_data(records) if records or not own else "", text]))


def _workload_data(records: Sequence[Record]) -> str:
    synthetic = sum(record.spec.data is None for record in records)
    real = sorted({str(record.spec.data) for record in records if record.spec.data is not None})
    made = "generated from a seed, with the shapes and types of the real data and a pattern that can be learnt"
    if not real:
        return f"All data are synthetic: {made}. Losses show whether a network begins to learn, not how well."
    text = f"{formatting.count(len(records) - synthetic, 'run')} read real data ({', '.join(real)})"
    return f"{text}; the data of the other {synthetic} are synthetic: {made}." if synthetic else f"{text}."
