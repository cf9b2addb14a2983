"""What a trace came to, as a record keeps it; and a record from a trace that somebody has. Neither needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fathom.core.fingerprint import Cpu, Gpu, Machine
from fathom.core.record import Profile, Record
from fathom.core.spec import OWN, RunSpec
from fathom.trace import walk
from fathom.trace.convolution import split_backward
from fathom.trace.depth import trace_depth
from fathom.trace.event import Event
from fathom.trace.gputime import gpu_time
from fathom.trace.host import HostTime
from fathom.trace.memory import memory
from fathom.trace.reader import gc_disabled, read
from fathom.trace.rows import Breakdown
from fathom.trace.sources import sources
from fathom.trace.timeline import timeline

PRECISION_OF = {"double": "fp64", "float": "fp32", "BFloat16": "bf16", "Half": "fp16"}
MOST = 0.9  # of the products' time: a precision of as much is that of all
LONGEST_NAME = 100  # of a record: its file is called after it


@gc_disabled()
def from_trace(path: Path) -> Record:
    """A record from a torch.profiler trace that the user already has. What the trace does not tell is absent."""
    trace = read(path)
    found = walk.breakdown(trace.columns)
    notes = [*trace.notes, *split_backward(found)]
    steps = [(end - begin) * 1e-6 for begin, end in found.steps]
    device = "cuda" if found.on_gpu else "cpu"
    # files of one name may hold different runs, and these must not be taken for repetitions of one
    identity = {"trace": trace.digest}
    profile = as_profile(found, steps, notes, trace.memory, ranks=(trace.rank, trace.world_size))
    return Record(
        spec=RunSpec(
            workload=path.name[:LONGEST_NAME],
            source="trace",
            preset=OWN,
            phase=profile.phase,
            kind="profiled",
            device=device,
            precision=precision(profile),
            seed=None,
            options=identity,
        ),
        machine=_machine(trace.gpus, found.on_gpu),
        device=device,
        outcome="ok",
        step_s=steps,
        profile=profile,
        notes=[f"read from {path.name}"],
    )


def precision(profile: Profile) -> str | None:
    """What most of the matrix products and convolutions are computed in, by their inputs; None where that is not known.

    Inputs in float32 do not tell whether a GPU rounded them to TF32 on the way.
    """
    seconds: dict[str, float] = {}
    for row in profile.rows:
        if row.group in ("B", "D") and row.dtypes:
            kind = PRECISION_OF.get(row.dtypes.split()[0])
            if kind is not None:
                seconds[kind] = seconds.get(kind, 0.0) + profile.seconds(row)
    total = sum(seconds.values())
    most = max(seconds, key=lambda kind: seconds[kind], default=None)
    if most is None or not total:
        return None
    return most if seconds[most] >= MOST * total else "mixed"


def _machine(gpus: Sequence[str], on_gpu: bool) -> Machine:
    """Of the machine that made the trace no more is known than the names of its GPUs."""
    names = gpus or (["the GPU of a trace"] if on_gpu else [])
    return Machine(cpu=Cpu(name="the CPU of a trace"), gpus=[Gpu(name=name) for name in names])


@gc_disabled()
def as_profile(
    found: Breakdown,
    step_s: list[float],
    notes: Sequence[str],
    allocations: Sequence[Event] = (),
    ranks: tuple[int | None, int | None] = (None, None),
) -> Profile:
    """What a trace came to, as a record keeps it; unprofiled steps and measured peaks are for the caller to add."""
    groups, times = found.grouped(), found.times()
    windows = [found.steps[step] for step in sorted(found.typical_steps)]  # the steps of the rows
    return Profile(
        rows=found.rows(groups),
        kernels=found.kernels(),
        step_s=step_s,
        plain_step_s=[],
        outside_s=found.outside_s(times),
        per_step_s=found.per_step_s(times),
        gpu=gpu_time(found.gpu_activities, HostTime(found.columns), windows),
        notes=[*found.notes, *notes],
        data_s=found.data_s(),
        depth=trace_depth(found, *ranks),
        row_kernels=found.row_kernels(groups),
        sources=sources(found),
        memory=memory(found, allocations),
        timeline=timeline(found),
    )
