"""What Fathom and HolisticTraceAnalysis 0.5.0 answer from the same traces agrees where the definitions do.

Its answers are kept in golden/hta.json, written by benchmarks/traces.py --golden. The traces are not in the repository:
FATHOM_DATA names the folder whose subfolder traces has them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import real_data

from fathom.core.depth import TraceDepth
from fathom.trace import walk
from fathom.trace.depth import trace_depth
from fathom.trace.event import GPU_KINDS, LAUNCH, Event, launch_args
from fathom.trace.reader import read

pytestmark = pytest.mark.realdata
GOLDEN: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "golden" / "hta.json").read_text())
# where definitions differ: docs/profile.md
OTHER_KINDS = {"hta/mtia_inference_rank_0.json.gz"}  # it counts MTIA's waits as kernels
# kernels overlap on one stream: it counts idle time while the longer one runs, and rounded times as negative ones
OVERLAPPING = ("worker1_", "worker3_", "dlrm-v100")
# it counts one kernel per launch, of a CUDA graph too; and none that cuLaunchKernel launched
OTHER_LAUNCHES = ("serving/", "hta/dlrm-v100")
NAMES = sorted(name for name in GOLDEN if name not in OTHER_KINDS)
US = 1e-6
ROUNDING = 1e-5  # times in a trace are large numbers, with few digits left for nanoseconds


@functools.cache
def depth(name: str) -> TraceDepth:
    events = launched_in_steps(read(real_data("traces") / name).events)
    return trace_depth(walk.breakdown(events))


def launched_in_steps(events: Sequence[Event]) -> Sequence[Event]:
    """Of a trace with several steps it takes only the kernels that were launched before the end of the last one."""
    ends = [event.end for event in events if event.name.startswith("ProfilerStep#")]
    if len({event.name for event in events if event.name.startswith("ProfilerStep#")}) < 2:
        return events
    launched = {launch_args(event).correlation for event in events if event.cat == LAUNCH and event.ts <= max(ends)}
    return [event for event in events if event.cat not in GPU_KINDS or launch_args(event).correlation in launched]


def answer(name: str, question: str) -> Any:
    """Its answer; a test has nothing to compare with where it failed."""
    found = GOLDEN[name].get(question)
    if found is None:
        pytest.skip("HolisticTraceAnalysis has no answer")
    return found


@pytest.mark.parametrize("name", NAMES)
def test_temporal_breakdown(name: str) -> None:
    theirs, ours = answer(name, "temporal"), depth(name).whole
    assert ours is not None
    span = theirs["kernel"] * US
    assert ours.span_s == pytest.approx(span, rel=1e-6)
    assert ours.idle_s == pytest.approx(theirs["idle"] * US, abs=ROUNDING * span)
    assert ours.computation_s == pytest.approx(theirs["compute"] * US, abs=ROUNDING * span)
    alone = ours.exposed_communication_s + ours.exposed_memory_s
    assert alone == pytest.approx(theirs["non_compute"] * US, abs=ROUNDING * span)


@pytest.mark.parametrize("name", NAMES)
def test_overlap(name: str) -> None:
    theirs, ours = answer(name, "overlap_percent"), depth(name).whole
    assert ours is not None
    assert ours.overlap is not None
    assert round(100 * ours.overlap, 2) == pytest.approx(theirs, abs=0.011)


@pytest.mark.parametrize("name", NAMES)
def test_idle_time_by_cause(name: str) -> None:
    theirs = answer(name, "idle")
    if any(part in name for part in OVERLAPPING):
        pytest.skip("kernels overlap on one stream")
    ours = {each.stream.removeprefix("stream "): each for each in depth(name).streams}
    for stream, causes in theirs.items():
        found = ours[stream]
        parts = {"host_wait": found.host_wait_s, "kernel_wait": found.kernel_wait_s, "other": found.other_s}
        for cause, seconds in parts.items():
            assert seconds / US == pytest.approx(causes.get(cause, 0.0), abs=0.2, rel=ROUNDING), (stream, cause)


@pytest.mark.parametrize("name", NAMES)
def test_queue_length(name: str) -> None:
    theirs = answer(name, "queue_max")
    if name.startswith(OTHER_LAUNCHES):
        pytest.skip("CUDA graphs, or launches that it does not know")
    ours = {each.stream.removeprefix("stream "): each.queue_max for each in depth(name).streams}
    assert {stream: ours[stream] for stream in theirs} == theirs


@pytest.mark.parametrize("name", NAMES)
def test_launches(name: str) -> None:
    theirs, ours = answer(name, "launches"), depth(name).launches
    if not theirs["count"]:
        pytest.skip("HolisticTraceAnalysis knows only CUDA's launch calls")
    assert ours is not None
    if ours.count > theirs["count"]:
        pytest.skip("HolisticTraceAnalysis does not know cuLaunchKernel and cudaMemcpy")
    assert ours.count == theirs["count"]
    assert ours.shorter_than_call == theirs["shorter_than_call"]
    assert ours.shorter_than_call_s / US == pytest.approx(theirs["shorter_than_call_us"], rel=1e-4)
    assert ours.after_call_mean_s / US == pytest.approx(theirs["mean_delay"], rel=1e-4)
