"""Power and clocks inside a trace: aligned with its ops by marks at known moments, whatever the trace's clock is."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from metering import every, samples
from trace_events import event

from fathom.core.energy import COUNTER, PowerTrace
from fathom.core.errors import DataError
from fathom.core.spec import RunSpec
from fathom.measure import power_track, profiling
from fathom.measure.profiling import write_trace
from fathom.trace import reader
from fathom.trace.event import Event
from fathom.trace.power_track import ALIGNMENT, CLOCK_MARK, Alignment, add_power_track, aligned, counter_events
from fathom.trace.steps import STEP


def marks(
    offset_us: float, begin: float, end: float, drift: float = 0.0
) -> tuple[list[Event], list[tuple[float, float]]]:
    """Five marks at each end of a recording, by a clock that is so far from time.monotonic() and drifts."""
    moments = [at + 1e-5 * number for at in (begin, end) for number in range(5)]
    stamped = [event(CLOCK_MARK, offset_us + 1e6 * (at + drift * (at - begin)), 1.0) for at in moments]
    return stamped, [(at - 2e-6, at + 2e-6) for at in moments]


@pytest.mark.parametrize("offset_us", [0.0, 1.79e15, -4e9])
def test_any_clock_is_aligned_to_a_microsecond(offset_us: float) -> None:
    """A trace's zero is the epoch, the start of the machine or a base of its own, by the version of torch."""
    found = aligned(*marks(offset_us, 1000.0, 1004.0))
    assert found is not None
    assert found.to_trace(1002.0) == pytest.approx(offset_us + 1e6 * 1002.0, abs=1.0)
    assert found.within_us == pytest.approx(2.0, rel=1e-3)
    assert found.pid == 1


def test_a_drift_between_the_clocks_is_followed() -> None:
    found = aligned(*marks(5e6, 10.0, 110.0, drift=1e-4))
    assert found is not None
    assert found.to_trace(60.0) == pytest.approx(5e6 + 1e6 * (60 + 1e-4 * 50), abs=1.0)


def test_a_mark_that_was_interrupted_does_not_count() -> None:
    stamped, moments = marks(0.0, 10.0, 12.0)
    late = [*moments[:2], (moments[2][0] - 0.05, moments[2][1]), *moments[3:]]
    found = aligned(stamped, late)
    assert found is not None
    assert found.to_trace(11.0) == pytest.approx(11e6, abs=1.0)


def test_marks_that_are_not_all_in_the_trace_align_nothing() -> None:
    stamped, moments = marks(0.0, 10.0, 12.0)
    assert aligned(stamped[1:], moments) is None
    assert aligned([], []) is None


PLAIN = Alignment((10.0, 10e6), (12.0, 12e6), 1.0, 7)


def traced_meter(**changes: Any) -> PowerTrace:
    seconds = [9.0 + 0.5 * number for number in range(9)]
    fields: dict[str, Any] = {
        **{"meter": "NVML", "scope": "GPU 0", "kind": COUNTER, "seconds": seconds},
        **{"watts": [100.0 + number for number in range(9)], "clock_mhz": [1980.0] * 9},
    }
    return PowerTrace(**{**fields, **changes})


def test_samples_of_the_recording_and_one_on_either_side_become_counters() -> None:
    events = list(counter_events(traced_meter(), PLAIN))
    power = [each for each in events if each["name"] == "GPU 0 power (W)"]
    assert [(each["ts"], each["args"]) for each in power] == [
        (9.5e6, {"W": 101.0}),
        *((1e6 * at, {"W": 102.0 + number}) for number, at in enumerate((10.0, 10.5, 11.0, 11.5, 12.0))),
        (12.5e6, {"W": 107.0}),
    ]
    assert {each["name"] for each in events} == {"GPU 0 power (W)", "GPU 0 clock (MHz)"}
    assert {(each["ph"], each["pid"]) for each in events} == {("C", 7)}


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_trace_keeps_its_ops_and_gains_the_track(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"trace{suffix}"
    op = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 1, "ts": 10.5e6, "dur": 3.25}
    text = json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": 5, "traceEvents": [op]}).encode()
    path.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
    assert add_power_track(path, [traced_meter()], PLAIN) == 14
    raw = gzip.decompress(path.read_bytes()) if suffix.endswith("gz") else path.read_bytes()
    document = json.loads(raw)
    assert document["traceEvents"][0] == op
    assert len(document["traceEvents"]) == 15
    assert (document["baseTimeNanoseconds"], document[ALIGNMENT]) == (5, {"aligned_within_us": 1.0})
    (read,) = reader.read(path).events
    assert (read.name, read.ts) == ("aten::mm", 10.5e6)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_no_trace_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [')
    with pytest.raises(DataError, match="no trace to add power to"):
        add_power_track(path, [traced_meter()], PLAIN)
    assert path.read_text() == '{"traceEvents": ['


class FakeSampler:
    """Samples from a second before it was made until it is stopped, every millisecond, of 100 W."""

    def __init__(self, target: object, period_s: float) -> None:
        self.begun = time.monotonic()

    def __enter__(self) -> FakeSampler:
        return self

    def __exit__(self, *raised: object) -> None: ...

    def stop(self) -> Any:
        return samples(every(0.001, time.monotonic() + 0.01, begin=self.begun - 1), watts=lambda at: 100.0)


def test_the_track_covers_the_steps_of_a_real_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own clock against time.monotonic(): its version is whatever is installed."""
    monkeypatch.setattr(power_track, "Sampler", FakeSampler)
    monkeypatch.setattr(profiling, "ceilings", lambda device, precision: (None, None))
    path = tmp_path / "trace.json"
    write_trace(RunSpec(workload="autoenc", preset="tiny", device="cpu", budget_s=0.05), path)
    document = json.loads(path.read_text())
    steps = [each for each in document["traceEvents"] if each.get("name") == STEP]
    power = [each for each in document["traceEvents"] if each.get("ph") == "C"]
    assert len(steps) >= 6
    begin, end = steps[0]["ts"], steps[-1]["ts"] + steps[-1]["dur"]
    inside = [each for each in power if begin <= each["ts"] <= end]
    apart = 2 + 2 * document[ALIGNMENT]["aligned_within_us"] / 1000
    assert len(inside) == pytest.approx((end - begin) / 1000, abs=apart), "one in each millisecond of the steps"
    assert power[0]["ts"] < begin < end < power[-1]["ts"]
    assert document[ALIGNMENT]["aligned_within_us"] < 10_000
    assert {each["pid"] for each in power} == {steps[0]["pid"]}


def test_without_a_meter_the_trace_is_as_torch_wrote_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing(FakeSampler):
        def stop(self) -> Any:
            return None

    monkeypatch.setattr(power_track, "Sampler", Nothing)
    with power_track.PowerTrack(torch.device("cpu")) as track:
        assert track.add(tmp_path / "none.json", []) == 0
