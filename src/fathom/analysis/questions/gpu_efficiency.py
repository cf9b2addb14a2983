"""Does the host keep the GPU busy? Answers Table 1 of the Minsky study: kernels over API calls, copies, launches, gaps.

Two views. A steady step tells what holds it back now. The whole life of a program, context to last step, is what the
study's nvprof saw, and where small workloads lose what a GPU would gain them.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fathom import published
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table
from fathom.analysis.questions._words import in_percent, listed, unanswered
from fathom.analysis.selection import select, where, workload_order
from fathom.core.record import GpuTime, Record

TITLE = "Does the host keep the GPU busy?"
SHOWN_CALLS = 4  # the longest API calls of a workload
KINDS = {  # of API calls, by words in their names; the first that fits
    "waiting": ("Synchronize", "EventQuery", "StreamQuery"),
    "launches": ("LaunchKernel", "LaunchCooperative", "GraphLaunch"),
    "copies": ("Memcpy", "Memset"),
    "memory": ("Malloc", "Free", "HostAlloc", "HostRegister", "MemPool"),
    "code loading": ("Module", "Library", "FuncGet", "FuncSet", "Occupancy", "KernelGet"),
}
CONTEXT, LAUNCHES, OTHER = "context", "launches", "other"


@dataclass(frozen=True)
class Step:
    """A steady step of one workload on one GPU, of its last run, without the profiler's slowdown."""

    workload: str
    phase: str
    place: str
    gpu: GpuTime
    step_s: float  # unprofiled
    slowdown: float | None  # by the profiler; None where only a trace was read

    @property
    def name(self) -> str:
        return f"{self.workload} {self.phase}"

    @property
    def busy(self) -> float:
        return min(1.0, self.gpu.busy_s / self.step_s)

    @property
    def starved(self) -> float:
        """The profiler slows the host and not the GPU: of the plain step's idle time, the part that starved then."""
        idle = self.gpu.span_s - self.gpu.busy_s
        return (1 - self.busy) * (self.gpu.starved_s / idle if idle > 0 else 0.0)

    @property
    def launching(self) -> float:
        """The share of a step that the host is inside launch calls: of the profiled one, which slows calls and all."""
        launching_s = sum(call.cpu_s for call in self.gpu.api if kind_of(call.name) == LAUNCHES)
        return launching_s / self.gpu.span_s

    @property
    def longest_gap_s(self) -> float | None:
        """None where it is longer than the plain step: the wait of the first profiled step for the profiler."""
        return self.gpu.longest_gap_s if self.gpu.longest_gap_s <= self.step_s else None

    @property
    def verdict(self) -> str:
        """By the larger part. A host that is late may be launching, computing or playing a game."""
        return "host-bound" if self.starved > self.busy else "GPU-bound"


@dataclass(frozen=True)
class Life:
    """The whole program of one workload on one GPU."""

    workload: str
    phase: str
    preset: str
    place: str
    gpu: GpuTime
    context_s: float
    steps: int

    @property
    def api_s(self) -> float:
        """Making the context is the driver's work too, though the trace begins after it."""
        return self.gpu.api_s + self.context_s

    def kinds(self) -> dict[str, float]:
        """Kind of API call -> seconds."""
        found = {CONTEXT: self.context_s, **dict.fromkeys(KINDS, 0.0), OTHER: 0.0}
        for call in self.gpu.api:
            found[kind_of(call.name)] += call.cpu_s
        return found


def analyse(records: Sequence[Record]) -> Finding:
    selection = select([r for r in records if r.profile and r.profile.gpu], profiled=True)
    steps = [_step(setting.workload, setting.phase, setting.place, setting.runs) for setting in selection.settings]
    lives = _lives(records)
    if not steps and not lives:
        return unanswered("gpu_efficiency", TITLE, "no profiled run on a GPU", selection.notes)
    return Finding(
        question="gpu_efficiency",
        title=TITLE,
        summary=_summary(steps, lives),
        tables=[*([_step_table(steps)] if steps else []), *([_table_1(lives), _calls(lives)] if lives else [])],
        charts=[*([_step_chart(steps)] if steps else []), *([_life_chart(lives)] if lives else [])],
        notes=[*_notes(steps, lives), *selection.notes],
    )


def kind_of(call: str) -> str:
    return next((kind for kind, words in KINDS.items() if any(word in call for word in words)), OTHER)


def _step(workload: str, phase: str, place: str, runs: Sequence[Record]) -> Step:
    run = runs[-1]
    assert run.profile is not None
    assert run.profile.gpu is not None
    gpu = run.profile.gpu
    plain_s = statistics.median(run.profile.plain_step_s or [gpu.span_s])
    return Step(workload, phase, place, gpu, plain_s, run.profile.slowdown)


def _lives(records: Sequence[Record]) -> list[Life]:
    """The newest life of each program on each GPU."""
    found: dict[tuple[str, ...], Life] = {}
    for record in sorted(records, key=lambda record: record.started):
        if record.program and record.outcome == "ok":
            spec = record.spec
            program = (spec.workload, spec.phase, spec.preset, where(record))
            found[program] = Life(*program, record.program, record.sections.context_s or 0.0, spec.warmup + spec.steps)
    return sorted(found.values(), key=lambda life: (life.place, workload_order(life.workload), life.phase, life.preset))


def _summary(steps: Sequence[Step], lives: Sequence[Life]) -> str:
    told = []
    if steps:
        starving = [step.name for step in steps if step.verdict == "host-bound"]
        busiest = max(steps, key=lambda step: step.busy)
        told.append(f"The GPU is busiest in {busiest.name} ({100 * busiest.busy:.0f} % of a step)")
        told.append(
            f"; in {listed(starving)} it waits for the host for longer than it works."
            if starving
            else "; in no workload does it wait for the host for longer than it works."
        )
    if lives:
        worst = min(lives, key=lambda life: life.gpu.kernel_s / life.api_s)
        part = worst.gpu.kernel_s / worst.api_s
        told.append(f" Over a whole program, kernels run for {part:.2g} of the time in API calls in {worst.workload}.")
    return "".join(told).strip()


def _step_table(steps: Sequence[Step]) -> Table:
    rows = [list(_step_cells(step).values()) for step in steps]
    return Table(title="A steady step", columns=list(_step_cells(steps[0])), rows=rows)


def _step_cells(step: Step) -> dict[str, Cell]:
    gpu = step.gpu
    return {
        "workload": step.workload,
        "phase": step.phase,
        "GPU": step.place,
        "step (ms)": step.step_s * 1e3,
        "profiler's slowdown": step.slowdown,
        "busy (%)": in_percent(step.busy),
        "starved (%)": in_percent(step.starved),
        "launching (%)": in_percent(step.launching),
        "kernels and copies": gpu.launches,
        "gaps": gpu.gaps,
        "longest gap (ms)": None if step.longest_gap_s is None else step.longest_gap_s * 1e3,
        "copies (% of busy)": in_percent(gpu.memcpy_s / gpu.busy_s) if gpu.busy_s else None,
        "kernels/API": gpu.kernel_s / gpu.api_s if gpu.api_s else None,
        "verdict": step.verdict,
    }


def _table_1(lives: Sequence[Life]) -> Table:
    printed = published.gpu_efficiency()
    rows: list[list[Cell]] = []
    for life in lives:
        theirs = printed.get(life.workload)
        busy = life.gpu.kernel_s + life.gpu.memcpy_s + life.gpu.memset_s  # what nvprof's percentages are of
        rows.append(
            [
                *(life.workload, life.phase, life.preset, life.place, life.steps),
                life.gpu.kernel_s / life.api_s,
                theirs.kernel_over_api_time if theirs else None,
                in_percent(life.gpu.memcpy_s / busy) if busy else None,
                theirs.memcpy_percent if theirs else None,
                in_percent(life.context_s / life.api_s),
            ]
        )
    columns = [
        *("workload", "phase", "preset", "GPU", "steps"),
        "kernels/API",
        "published",
        "copies (% of kernels and copies)",
        "published (%)",
        "context (% of API)",
    ]
    return Table(title="The whole program, as Table 1 of the study", columns=columns, rows=rows)


def _calls(lives: Sequence[Life]) -> Table:
    """The API calls that dominate, the making of the context among them."""
    rows: list[list[Cell]] = []
    for life in lives:
        calls = [(call.name, kind_of(call.name), call.calls, call.cpu_s) for call in life.gpu.api]
        calls.append(("making the context", CONTEXT, 1.0, life.context_s))
        for name, kind, count, seconds in sorted(calls, key=lambda call: -call[3])[:SHOWN_CALLS]:
            rows.append([life.workload, life.place, name, kind, count, seconds * 1e3, 100 * seconds / life.api_s])
    columns = ["workload", "GPU", "call", "kind", "calls", "time (ms)", "of API time (%)"]
    return Table(title="Which API calls dominate a program", columns=columns, rows=rows)


def _step_chart(steps: Sequence[Step]) -> Chart:
    several = len({step.place for step in steps}) > 1
    names = [f"{step.name}, {step.place}" if several else step.name for step in steps]
    parts = {
        "busy": [step.busy for step in steps],
        "starved: the host was late": [step.starved for step in steps],
        "other idle": [max(0.0, 1 - step.busy - step.starved) for step in steps],
    }
    return Chart(
        kind="stacked",
        title="The GPU's time in a step",
        x_title="workload",
        y_title="of the step (%)",
        series=[Series(name=name, x=names, y=[100 * part for part in values]) for name, values in parts.items()],
    )


def _life_chart(lives: Sequence[Life]) -> Chart:
    names = [life.workload for life in lives]
    if len(set(names)) < len(names):
        names = [f"{life.workload} {life.phase}, {life.preset}, {life.place}" for life in lives]
    shares: dict[str, list[float]] = defaultdict(list)
    for life in lives:
        for kind, seconds in life.kinds().items():
            shares[kind].append(100 * seconds / life.api_s)
    return Chart(
        kind="stacked",
        title="What the host calls the GPU's interface for, over a whole program",
        x_title="workload",
        y_title="of API time (%)",
        series=[Series(name=kind, x=names, y=values) for kind, values in shares.items()],
    )


def _notes(steps: Sequence[Step], lives: Sequence[Life]) -> list[str]:
    notes = []
    if steps:
        notes.append(
            "Busy is the time in which a kernel or copy ran. Starved is idle time before a piece that the host had not "
            "launched yet when the GPU ran dry; the profiler slows the host, so idle time is that of the plain step, "
            "parted as in the profiled one. A profiled step ends with a wait for the GPU, which counts as API time."
        )
        notes.append(
            "The profiler's slowdown is the profiled step over the plain one, medians. Launching is the host's time "
            "inside launch calls over the profiled step: the profiler makes each call longer and the rest of the "
            "host's work too, so that the share is fairer than the seconds. Kernels and copies count memsets as well. "
            "A longest gap that is longer than the plain step is the profiler's own and is not shown."
        )
    if lives:
        notes.append(
            f"{published.MINSKY}, Table 1 was read from nvprof on a Tesla P100 under TensorFlow 1.0; it has no row for "
            "speech. nvprof lists copies among the kernels and gives each a share of them all, memsets included: so is "
            "the column of copies. Kernels/API is of kernels alone here; whether the study's has copies in it, it does "
            "not say. API time here is every call of the CUDA runtime and driver that the profiler saw from setup to "
            "the last step, and the making of the context before it."
        )
    return notes
