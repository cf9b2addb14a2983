"""A profiler trace that the user already has, as a record."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
from pathlib import Path

import msgspec

from fathom.core.fingerprint import Gpu
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.machine.host import fingerprint
from fathom.measure.convolution import split_convolution_backward
from fathom.measure.profiling import as_profile
from fathom.trace import reader, walk

LONGEST_NAME = 100  # of a trace: the file of its record is called after it


@reader.gc_disabled()
def from_trace(path: Path) -> Record:
    """A record from a torch.profiler trace that the user already has."""
    events = reader.read(path)
    found = walk.breakdown(events)
    notes = split_convolution_backward(found, device=None)
    steps = [(end - begin) * 1e-6 for begin, end in found.steps]
    device = "cuda" if found.on_gpu else "cpu"
    raw = path.read_bytes()
    # files of one name may hold different runs, and these must not be taken for repetitions of one
    identity = {"trace": hashlib.sha256(raw).hexdigest()[:12]}
    return Record(
        spec=RunSpec(
            workload=path.name[:LONGEST_NAME], phase=found.phase, kind="profiled", device=device, options=identity
        ),
        machine=dataclasses.replace(fingerprint(), gpus=_gpus_of_trace(raw)) if found.on_gpu else fingerprint(),
        device=device,
        outcome="ok",
        step_s=steps,
        profile=as_profile(
            found, events, steps, notes=[*notes, f"read from {path.name}; {_whose_machine(found.on_gpu)}"]
        ),
        notes=[f"read from {path.name}"],
    )


class _Devices(msgspec.Struct):
    deviceProperties: list[Gpu] = []


def _gpus_of_trace(raw: bytes) -> list[Gpu]:
    """The GPUs that a trace names; one without a name where it names none, as a kernel ran on something."""
    if raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    try:
        names = [gpu.name for gpu in msgspec.json.decode(raw, type=_Devices).deviceProperties if gpu.name]
    except msgspec.MsgspecError:  # a bare list of events, say
        names = []
    return [Gpu(name=name) for name in names or ["the GPU of a trace"]]


def _whose_machine(on_gpu: bool) -> str:
    if on_gpu:
        return "the GPU is the trace's, and all else of the machine is that of the one that read it"
    return "the machine shown is the one that read it"
