"""Does the host keep the GPU busy? Answers Table 1 of the Minsky study: kernels over API calls, copies, launches, gaps.

Two views: a steady step, and the whole program from its context to its last step. The second is what the study's nvprof
saw, and where small workloads lose what a GPU would gain them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fathom import published
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.selection import machine_name, select, workload_order
from fathom.core.formatting import in_percent, listed
from fathom.core.record import GpuTime, Record

TITLE = "Does the host keep the GPU busy?"
ORDER = 50
SHOWN_CALLS = 4  # the longest API calls of a workload
KINDS = {  # of API calls, by words in their names; the first that fits
    "waiting": ("Synchronize", "EventQuery", "StreamQuery"),
    "launches": ("LaunchKernel", "LaunchCooperative", "GraphLaunch"),
    "copies": ("Memcpy", "Memset"),
    "memory": ("Malloc", "Free", "HostAlloc", "HostRegister", "MemPool"),
    "code loading": ("Module", "Library", "FuncGet", "FuncSet", "Occupancy", "KernelGet"),
}
BOUND = 0.5  # of a step, as of a roof
CONTEXT, LAUNCHES, OTHER = "context", "launches", "other"


@dataclass(frozen=True)
class GpuStep:
    """A steady step of one workload on one GPU, from its last run, as it is without the profiler."""

    workload: str
    phase: str
    machine: str
    gpu: GpuTime
    step_s: float  # unprofiled
    free_running: bool  # that step was not waited for; older records have only steps that were
    slowdown: float | None  # by the profiler; None where only a trace was read

    @property
    def name(self) -> str:
        return f"{self.workload} {self.phase}"

    @property
    def busy(self) -> float:
        return min(1.0, self.gpu.busy_s / self.step_s)

    @property
    def starved(self) -> float:
        """The profiler slows the host and not the GPU: of the plain step's idle time, the part that starved then.

        What a profiled step idles at its end is its own wait for the GPU, which a free-running step does not have.
        """
        wait_s = (self.gpu.tail_s or 0.0) if self.free_running else 0.0
        idle = self.gpu.span_s - self.gpu.busy_s - wait_s
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
        """What takes half of the step at least. A late host may be launching kernels, computing or preparing data."""
        if self.busy >= BOUND:
            return "GPU-bound"
        return "host-bound" if self.starved >= BOUND else "neither"


@dataclass(frozen=True)
class Program:
    """The whole-program trace of one workload on one GPU."""

    workload: str
    phase: str
    preset: str
    machine: str
    gpu: GpuTime
    context_s: float
    steps: int

    @property
    def api_s(self) -> float:
        """Creating the context is the driver's work too, although the trace begins after it."""
        return self.gpu.api_s + self.context_s

    def kinds(self) -> dict[str, float]:
        """Kind of API call -> seconds."""
        found = {CONTEXT: self.context_s, **dict.fromkeys(KINDS, 0.0), OTHER: 0.0}
        for call in self.gpu.api:
            found[kind_of(call.name)] += call.cpu_s
        return found


def analyse(records: Sequence[Record]) -> Finding:
    selection = select([r for r in records if r.profile and r.profile.gpu], profiled=True)
    steps = [_step(group.workload, group.phase, group.machine, group.runs) for group in selection.groups]
    programs = _programs(records)
    if not steps and not programs:
        return not_measured("gpu_efficiency", TITLE, "fathom study --device cuda", selection.notes)
    return Finding(
        question="gpu_efficiency",
        title=TITLE,
        summary=_summary(steps, programs),
        tables=[
            *([_step_table(steps)] if steps else []),
            *([_table_1(programs), _calls(programs)] if programs else []),
        ],
        charts=[*([_step_chart(steps)] if steps else []), *([_program_chart(programs)] if programs else [])],
        notes=[*_notes(steps, programs), *selection.notes],
    )


def kind_of(call: str) -> str:
    return next((kind for kind, words in KINDS.items() if any(word in call for word in words)), OTHER)


def _step(workload: str, phase: str, machine: str, runs: Sequence[Record]) -> GpuStep:
    run = runs[-1]
    assert run.profile is not None
    assert run.profile.gpu is not None
    gpu = run.profile.gpu
    step_s = run.profile.unprofiled_s or gpu.span_s
    return GpuStep(workload, phase, machine, gpu, step_s, bool(run.profile.free_step_s), run.profile.slowdown)


def _programs(records: Sequence[Record]) -> list[Program]:
    """The newest trace of each program on each GPU."""
    found: dict[tuple[str, ...], Program] = {}
    for record in sorted(records, key=lambda record: record.started):
        if record.program and record.outcome == "ok":
            spec = record.spec
            key = (spec.workload, spec.phase, spec.preset, machine_name(record))
            found[key] = Program(*key, record.program, record.sections.context_s or 0.0, spec.warmup + spec.steps)
    return sorted(
        found.values(), key=lambda each: (each.machine, workload_order(each.workload), each.phase, each.preset)
    )


def _summary(steps: Sequence[GpuStep], programs: Sequence[Program]) -> str:
    sentences = []
    if steps:
        names = _names(steps)
        starved = [name for name, step in zip(names, steps, strict=True) if step.verdict == "host-bound"]
        busiest = max(range(len(steps)), key=lambda index: steps[index].busy)
        percent = 100 * steps[busiest].busy
        sentences.append(f"The GPU is busy for at most {percent:.0f} % of a step ({names[busiest]}).")
        sentences.append(
            f"It waits for the host for half of the step or more in {listed(list(dict.fromkeys(starved)))}."
            if starved
            else "In no workload does it wait for the host for half of a step."
        )
    if programs:
        worst = min(programs, key=lambda program: program.gpu.kernel_s / program.api_s)
        percent = 100 * worst.gpu.kernel_s / worst.api_s
        sentences.append(
            f"Over a whole program, kernel time is as low as {percent:.2g} % of the time in CUDA API calls "
            f"({worst.workload})."
        )
    return " ".join(sentences)


def _names(steps: Sequence[GpuStep]) -> list[str]:
    several = len({step.machine for step in steps}) > 1
    return [f"{step.name}, {step.machine}" if several else step.name for step in steps]


def _step_table(steps: Sequence[GpuStep]) -> Table:
    rows = [list(_step_cells(step).values()) for step in steps]
    return Table(title="GPU utilisation in a steady step", columns=list(_step_cells(steps[0])), rows=rows)


def _step_cells(step: GpuStep) -> dict[str, Cell]:
    gpu = step.gpu
    return {
        "workload": step.workload,
        "phase": step.phase,
        "GPU": step.machine,
        "step (ms)": step.step_s * 1e3,
        "profiled/unprofiled": step.slowdown,
        "busy (%)": in_percent(step.busy),
        "starved (%)": in_percent(step.starved),
        "launching (%)": in_percent(step.launching),
        "kernels and copies": gpu.activities,
        "gaps": gpu.gaps,
        "longest gap (ms)": None if step.longest_gap_s is None else step.longest_gap_s * 1e3,
        "copies (% of busy)": in_percent(gpu.memcpy_s / gpu.busy_s) if gpu.busy_s else None,
        "kernels/API": gpu.kernel_s / gpu.api_s if gpu.api_s else None,
        "verdict": step.verdict,
    }


def _table_1(programs: Sequence[Program]) -> Table:
    printed = published.gpu_efficiency()
    rows: list[list[Cell]] = []
    for program in programs:
        theirs = printed.get(program.workload) if program.phase == "train" else None
        busy = program.gpu.kernel_s + program.gpu.memcpy_s + program.gpu.memset_s  # what nvprof's percentages are of
        rows.append(
            [
                *(program.workload, program.phase, program.preset, program.machine, program.steps),
                program.gpu.kernel_s / program.api_s,
                theirs.kernel_over_api_time if theirs else None,
                in_percent(program.gpu.memcpy_s / busy) if busy else None,
                theirs.memcpy_percent if theirs else None,
                in_percent(program.context_s / program.api_s),
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
    return Table(title="Whole program, as in Table 1 of the Minsky study", columns=columns, rows=rows)


def _calls(programs: Sequence[Program]) -> Table:
    """The API calls that take the most time, context creation among them."""
    rows: list[list[Cell]] = []
    for program in programs:
        calls = [(call.name, kind_of(call.name), call.calls, call.cpu_s) for call in program.gpu.api]
        calls.append(("context creation", CONTEXT, 1.0, program.context_s))
        for name, kind, count, seconds in sorted(calls, key=lambda call: -call[3])[:SHOWN_CALLS]:
            rows.append(
                [program.workload, program.machine, name, kind, count, seconds * 1e3, 100 * seconds / program.api_s]
            )
    columns = ["workload", "GPU", "call", "kind", "calls", "time (ms)", "of API time (%)"]
    return Table(title="API calls that take the most time of a program", columns=columns, rows=rows)


def _step_chart(steps: Sequence[GpuStep]) -> Chart:
    names = _names(steps)
    parts = {
        "busy": [step.busy for step in steps],
        "starved: next kernel not launched": [step.starved for step in steps],
        "other idle": [max(0.0, 1 - step.busy - step.starved) for step in steps],
    }
    return Chart(
        kind="stacked",
        title="GPU time in a step",
        x_title="workload",
        y_title="share of step (%)",
        unit="%",
        series=[Series(name=name, x=names, y=[100 * part for part in values]) for name, values in parts.items()],
    )


def _program_chart(programs: Sequence[Program]) -> Chart:
    names = [program.workload for program in programs]
    if len(set(names)) < len(names):
        names = [f"{program.workload} {program.phase}, {program.preset}, {program.machine}" for program in programs]
    shares: dict[str, list[float]] = defaultdict(list)
    for program in programs:
        for kind, seconds in program.kinds().items():
            shares[kind].append(100 * seconds / program.api_s)
    return Chart(
        kind="stacked",
        title="CUDA API time over a whole program",
        x_title="workload",
        y_title="share of API time (%)",
        unit="%",
        series=[Series(name=kind, x=names, y=values) for kind, values in shares.items()],
    )


def _notes(steps: Sequence[GpuStep], programs: Sequence[Program]) -> list[str]:
    notes = []
    if steps:
        notes.append(
            "Busy: a kernel or copy is running. Starved: the GPU is idle because the next kernel is not yet launched. "
            "Busy is the time in which kernels ran in the profiled steps, over the unprofiled step time. The profiler "
            "slows the host, so idle time is that of the unprofiled step, divided as in the profiled one. A profiled "
            "step ends with a wait for the GPU, which counts as API time."
        )
        waited = [step.name for step in steps if not step.free_running and step.slowdown is not None]
        if waited:
            notes.append(
                f"In {listed(waited)} the unprofiled steps were waited for one by one (older records): a step that "
                "runs freely has less idle time."
            )
        notes.append(
            "Profiled/unprofiled is the ratio of median step times. Launching is the host's time inside launch calls "
            "over the profiled step: the profiler slows each call and the rest of the host's work alike, so the share "
            "is less biased than the seconds. Kernels and copies include memsets. A longest gap above the unprofiled "
            "step time comes from the profiler and is not shown."
        )
    if programs:
        missing = [name for name in published.op_percent() if name not in published.gpu_efficiency()]
        notes.append(
            f"Published: {published.MINSKY}, Table 1, read from nvprof on a Tesla P100 under TensorFlow 1.0. It has "
            f"no row for {listed(missing)}. nvprof lists copies among the kernels and gives each its share of all, "
            "memsets included; the column of copies does the same. Kernels/API counts kernels alone here; the study "
            "does not say whether it includes copies. API time is every call of the CUDA runtime and driver that the "
            "profiler saw from setup to the last step, and context creation before it."
        )
    return notes
