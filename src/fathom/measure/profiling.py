"""The profiled pass: a few steps of a session under torch's profiler, turned into op rows.

A profiled step is never a timed step. The ratio of profiled to plain step time in the same process, the profiler's own
slowdown, is part of the result. On a CPU a light pass follows where the slowdown matters: with fewer things recorded,
less of the step is the profiler's.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch._C._profiler import _ExperimentalConfig
from torch.jit._script import RecursiveScriptModule
from torch.profiler import ProfilerActivity, record_function

from fathom.core.record import GpuTime, LightPass, OpRow, Profile
from fathom.core.spec import EAGER, RunSpec
from fathom.engine.marks import Mark, marks_on
from fathom.engine.session import Session, Step
from fathom.machine.clock import StepClock, wait
from fathom.machine.peaks import ceilings
from fathom.measure.convolution import split_convolution_backward
from fathom.measure.held import Held
from fathom.measure.power_track import PowerTrack
from fathom.trace import marks, reader, walk
from fathom.trace.convolution import split_backward
from fathom.trace.event_columns import EventColumns
from fathom.trace.gpu import activities_of
from fathom.trace.gputime import gpu_time
from fathom.trace.host import HostTime
from fathom.trace.intervals import Intervals
from fathom.trace.memory import memory as memory_of
from fathom.trace.memory import with_known
from fathom.trace.profile import as_profile
from fathom.trace.reader import Trace
from fathom.trace.sources import sources
from fathom.trace.step_work import from_rows, own_precision
from fathom.trace.steps import STEP
from fathom.workloads.base import Output

MIN_STEPS = 6  # fewer values show no trend
MAX_CPU_STEPS = 24
MAX_DEVICE_STEPS = 12  # kernels vary less, and their traces are larger
MAX_PLAIN_STEPS = 100
PLAIN_S = 1.0  # of plain steps, as a host's speed wanders: six of them had a median of 68 ms where a hundred had 84
LIGHT_SERIES = 3  # plain, recorded and plain steps again
SLOWED = 1.02  # profiled over plain step time, from which a light pass tells whose the difference is
LIGHT_S = 6.0  # of steps in a light pass, at most: where a step takes longer, the profiler's part of it is small
DETAIL_STEPS = 3  # with memory and stacks: one is shown, and gradients live until the next
BUDGET_S = 6.0  # of profiled steps, where the run has none; a step of minutes is still profiled MIN_STEPS times


def profiled(
    session: Session,
    timed_step_s: Sequence[float] | None = None,
    trace_out: Path | None = None,
    *,
    memory: bool = False,
    stacks: bool = False,
) -> Profile:
    """A profile of the session's next steps; timed_step_s are steps already timed in this process.

    memory and stacks add memory over a step and source lines, from a short pass of its own: recording them takes time.
    """
    on_cpu = session.device.type == "cpu"
    free = list(timed_step_s) if timed_step_s else _free_running(session)
    plain = free if on_cpu else _plain(session)
    budget_s = session.spec.budget_s or BUDGET_S
    most = MAX_CPU_STEPS if on_cpu else MAX_DEVICE_STEPS
    steps = max(MIN_STEPS, min(most, int(budget_s / statistics.median(plain))))
    networks = {"": session.state.model, **session.state.beside}
    with layers_marked(networks):
        slowed, trace = _recorded(session, steps, shapes=True, trace_out=trace_out)
    found = walk.breakdown(trace.columns, roles(networks))
    notes = split_convolution_backward(found, session.device)
    if session.spec.engine != EAGER:
        notes.append(traced_to_layers(session.spec.engine, found.rows()))
    matrix, copy = ceilings(session.device, computed_in(session.spec.precision, found.rows()))
    profile = replace(
        as_profile(found, slowed, notes),
        plain_step_s=plain,
        free_step_s=[] if on_cpu else free,
        ceiling_flop_per_s=matrix,
        ceiling_bytes_per_s=copy,
    )
    plain_s = statistics.median(plain)
    light_steps = min(steps, int(LIGHT_S / plain_s / LIGHT_SERIES))
    matters = on_cpu and light_steps >= MIN_STEPS and statistics.median(slowed) > SLOWED * plain_s
    profile = replace(profile, light=_light_pass(session, light_steps)) if matters else profile
    return _in_detail(session, profile, stacks) if memory or stacks else profile


def computed_in(asked: str | None, rows: Iterable[OpRow]) -> str | None:
    """The precision of the products, which a model's own autocast may have chosen."""
    return own_precision(asked, [(work, calls) for work, calls, _ in from_rows(rows)])


def traced_to_layers(engine: str, rows: Sequence[OpRow]) -> str:
    """Compiled code and graphs run kernels of many layers, and no module is called when a graph is replayed."""
    spent = [(row.cpu_s if row.device_s is None else row.device_s, row.layer) for row in rows]
    known, total = sum(seconds for seconds, layer in spent if layer), sum(seconds for seconds, _ in spent)
    share = 100 * known / total if total else 0.0
    return f"{share:.0f} % of op time could be traced to a layer: engine {engine} runs kernels that several may share"


def _in_detail(session: Session, profile: Profile, stacks: bool) -> Profile:
    networks = {"": session.state.model, **session.state.beside}
    before = Held(session.state)
    with layers_marked(networks), _stderr_silenced():  # torch warns of memory that is freed and is older than the trace
        _, trace = _recorded(session, DETAIL_STEPS, shapes=False, memory=True, stacks=stacks)
    found = walk.breakdown(trace.columns, roles(networks))
    held = memory_of(found, trace.memory)
    split_backward(found)  # as the rows are
    lines = sources(found, profile) if stacks else None
    return replace(
        profile,
        memory=with_known(held, before.bytes(), is_all=session.state_is_whole) if held else None,
        sources=lines or profile.sources,
    )


def _light_pass(session: Session, steps: int) -> LightPass:
    before = _timed(session, steps)
    slowed, trace = _recorded(session, steps, shapes=False)
    after = _timed(session, steps)
    found = walk.breakdown(trace.columns)
    recorded, in_ops = found.events_per_step()
    return LightPass(
        step_s=slowed,
        plain_step_s=before + after,
        op_s=sum(row.cpu_s for row in found.rows()),
        outside_s=found.outside_s(),
        events=recorded,
        events_in_ops=in_ops,
    )


def _recorded(
    session: Session,
    steps: int,
    *,
    shapes: bool,
    trace_out: Path | None = None,
    memory: bool = False,
    stacks: bool = False,
) -> tuple[list[float], Trace]:
    """The times of so many steps under the profiler, and what it saw of them; a trace that is kept shows power, too."""
    recorder = torch.profiler.profile(
        activities=_activities(session),
        record_shapes=shapes,
        profile_memory=memory,
        with_stack=stacks,
        # else no op of a thread that the step starts is recorded; then again, no allocation is
        experimental_config=_ExperimentalConfig(profile_all_threads=not memory),
    )
    with PowerTrack(session.device) if trace_out else nullcontext() as track, marks_on():
        with _stderr_silenced():
            recorder.start()
        if track:
            track.mark()
        slowed = _timed(session, steps)
        if track:
            track.mark()
        with _stderr_silenced():
            recorder.stop()
        trace = _trace(recorder, trace_out)
        if track and trace_out:
            track.add(trace_out, trace.events)
    return slowed, trace


def write_trace(spec: RunSpec, path: Path) -> None:
    """A trace of some steps of a workload, for Perfetto, with power and clocks where they are metered."""
    with Session(spec).setup() as session:
        session.run(max(MIN_STEPS, spec.warmup))
        profiled(session, trace_out=path)


def _free_running(session: Session) -> list[float]:
    """Steps without the profiler on the device's own clock, none waited for: the host may run ahead of a GPU."""

    def timed(steps: int) -> list[float]:
        clock = StepClock(session.device, marks=1 + steps)
        clock.begin()
        session.run(steps, on_step=lambda step: (step.run(), clock.mark()))
        return clock.seconds()

    return _a_second_of(timed)


def _plain(session: Session) -> list[float]:
    """Steps without the profiler, waited for one by one as the profiled ones are."""
    return _a_second_of(partial(_timed, session))


def _a_second_of(timed: Callable[[int], list[float]]) -> list[float]:
    first = timed(MIN_STEPS)
    more = min(MAX_PLAIN_STEPS, int(PLAIN_S / statistics.median(first))) - MIN_STEPS
    return first + (timed(more) if more > 0 else [])


def program_trace(session: Session) -> tuple[GpuTime | None, list[float] | list[Output]]:
    """The setup and every step of a session that has none behind it, under the profiler, and what the steps gave."""
    recorder = torch.profiler.profile(activities=_activities(session))
    with _stderr_silenced():
        recorder.start()
    with record_function(walk.WHOLE_PROGRAM), marks_on():
        results = session.setup().run(session.spec.warmup + session.spec.steps)
        wait(session.device)
    with _stderr_silenced():
        recorder.stop()
    events = _trace(recorder, None).events
    program = [(event.ts, event.end) for event in events if event.name == walk.WHOLE_PROGRAM][:1]
    return gpu_time(activities_of(events), HostTime(EventColumns.of(events)), program), results


def busy_seconds(session: Session, steps: int) -> float | None:
    """Of a step that is not waited for: at least one kernel or copy running; None on a CPU."""
    if session.device.type != "cuda":
        return None
    recorder = torch.profiler.profile(activities=[ProfilerActivity.CUDA])
    wait(session.device)
    with _stderr_silenced():
        recorder.start()
    session.run(steps)
    wait(session.device)
    with _stderr_silenced():
        recorder.stop()
    ran = [(each.begin, each.end) for each in activities_of(_trace(recorder, None).events)]
    return Intervals.of(ran).length * 1e-6 / steps


def roles(networks: Mapping[str, nn.Module]) -> dict[str, str]:
    """Module path -> what the module is for: as the module itself says (its `role`), or its kind in plain words."""
    found: dict[str, str] = {}
    for path, module in _modules(networks):
        own = said if isinstance(said := getattr(module, "role", None), str) else None  # a submodule may be called so
        plain = next((word for kinds, word in _PLAIN if isinstance(module, kinds)), None)
        inherited = found.get(path.rpartition(".")[0])
        found[path] = own or (inherited if inherited and inherited != "network" else plain) or "network"
    return found


_PLAIN: list[tuple[tuple[type[nn.Module], ...], str]] = [
    ((nn.Conv1d, nn.Conv2d, nn.Conv3d), "convolution"),
    ((nn.Linear,), "fully connected"),
    ((nn.LSTM, nn.LSTMCell), "LSTM"),
    ((nn.RNN, nn.RNNCell, nn.GRU, nn.GRUCell), "recurrence"),
    ((nn.MultiheadAttention,), "attention"),
    ((nn.Embedding, nn.EmbeddingBag), "embedding"),
    ((nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm), "normalisation"),
    ((nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d), "pooling"),
    ((nn.Dropout, nn.Dropout2d), "dropout"),
]


@contextmanager
def layers_marked(networks: Mapping[str, nn.Module]) -> Iterator[None]:
    """While open, every module's forward is marked in the trace with the module's path; the network's own is ""."""
    opened = threading.local()  # a mark ends in the thread it began in
    handles = []

    def enter(path: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            mark = Mark(marks.LAYER + path)
            mark.__enter__()
            opened.__dict__.setdefault("marks", []).append(mark)

        return hook

    def leave(*_: object) -> None:
        opened.marks.pop().__exit__(None, None, None)

    for path, module in _modules(networks):
        if isinstance(module, RecursiveScriptModule):
            continue  # a scripted module takes no hooks
        handles.append(module.register_forward_pre_hook(enter(path)))
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _stderr_silenced() -> Iterator[None]:
    """Some builds of the profiler's library announce its start and stop on stderr, which is for people."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _activities(session: Session) -> list[ProfilerActivity]:
    gpu = [ProfilerActivity.CUDA] if session.device.type == "cuda" else []
    return [ProfilerActivity.CPU, *gpu]


def _modules(networks: Mapping[str, nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Every module with its path; those of a network with a name below that name."""
    for name, network in networks.items():
        yield from network.named_modules(prefix=name)


def _timed(session: Session, steps: int) -> list[float]:
    """Step times with the device waited for after each, so that a step's kernels lie inside its marker."""
    seconds: list[float] = []

    def hook(step: Step) -> None:
        begun = time.perf_counter()
        with Mark(STEP):
            step.run()
            wait(session.device)
        seconds.append(time.perf_counter() - begun)

    session.run(steps, on_step=hook)
    return seconds


def _trace(recorder: torch.profiler.profile, trace_out: Path | None) -> Trace:
    """Through the trace file itself: what a user opens in Perfetto is what was broken down."""
    with tempfile.TemporaryDirectory() as folder:
        path = trace_out or Path(folder) / "trace.json"
        recorder.export_chrome_trace(str(path))
        trace = reader.read(path)
        if trace.mended and trace_out:
            reader.mend(path)
        return trace
