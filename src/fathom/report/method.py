"""How the numbers of a report were measured, told from the records themselves."""

from __future__ import annotations

from collections.abc import Sequence

from fathom.analysis.selection import op_seconds, outside
from fathom.core.record import Profile, Record
from fathom.report import words


def outside_percent(profile: Profile | None) -> float | None:
    """The share of a step that is in no operation."""
    if not profile:
        return None
    step = op_seconds(profile) + outside(profile)
    return 100 * outside(profile) / step if step else None


def method(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Short paragraphs, each with a heading; how steps are timed is told where some were."""
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
            "A dash is a value that was not measured; it is never a zero. A run that failed keeps its place in every "
            "table and says why, and its times are not shown as results. One multiply-accumulate counts as two FLOP.",
        ),
    ]


def _clocks(records: Sequence[Record]) -> str:
    kinds = {record.device.split(":")[0] for record in records}
    told = []
    if kinds - {"cpu"}:
        told.append(
            "On an accelerator, step times are read from events on the device's own clock, after the last step: "
            "the host never waits between steps, and no launch is mistaken for the work it started."
        )
    if "cpu" in kinds or not told:
        told.append("On a CPU, steps are timed with the monotonic clock of the processor, from boundary to boundary.")
    return " ".join(told)


def _medians(records: Sequence[Record]) -> str:
    counts = [len(record.step_s) for record in records if record.step_s]
    how_many = f" ({words.span(counts)} of them in a run)" if counts else ""
    budgets = {record.spec.budget_s for record in records if record.spec.budget_s}
    stop = " A run stops when its median is known to 1 %, or its time is spent; its note says which." if budgets else ""
    return (
        f"A step time is the median of the timed steps{how_many}, less those before the series settled: a change of "
        "level decides that, not a guess. Beside it stands a 95 % bootstrap interval; where a run was repeated in "
        "several processes, processes are resampled first, then their steps. Warm-up steps are kept in the record; "
        f"outliers are shown, not dropped.{stop}"
    )


def _passes(records: Sequence[Record]) -> str:
    factors = [record.profile.slowdown for record in records if record.profile and record.profile.slowdown]
    told = "Timing and profiling are separate passes: a profiled step is never a timed step. "
    if not factors:
        return told + "No run of this report was profiled beside a plain pass."
    return told + (
        f"The profiler's own cost is measured in the same process, as profiled over plain step time: here "
        f"{words.span(factors, ' ×')}, and for each run in the table below."
    )


def _sums(records: Sequence[Record]) -> str:
    shares = [share for record in records if (share := outside_percent(record.profile)) is not None]
    told = (
        "The times of a step's operations and the time outside them add up to the step. A backward operation is "
        "credited to the layer whose forward made it. On a GPU, kernels carry the time, and outside is where none ran. "
    )
    if not shares:
        return told
    return told + f"Outside every operation: {words.span(shares, ' %')} of a step, for each run in the table below."


def _data(records: Sequence[Record]) -> str:
    synthetic = sum(record.spec.data is None for record in records)
    real = sorted({str(record.spec.data) for record in records if record.spec.data is not None})
    made = "made up from a seed, with the shapes and types of the real data and a pattern that can be learnt"
    if not real:
        return f"All data are synthetic: {made}. Losses show that a network learns, not how well."
    told = f"{words.count(len(records) - synthetic, 'run')} read real data ({', '.join(real)})"
    return f"{told}; the data of the other {synthetic} are synthetic: {made}." if synthetic else f"{told}."
