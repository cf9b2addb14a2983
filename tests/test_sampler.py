"""The sampling process: what it loads, how it ends, and what is left of a run's energy when something goes wrong."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from metering import PLUG, install_meter

from fathom.core import plugins
from fathom.core.energy import PowerTrace, Reading
from fathom.core.spec import RunSpec
from fathom.machine import sampler
from fathom.machine.meter import Target, find_meters
from fathom.machine.sampler import Sampler, Samples
from fathom.measure.energy import energy_of, missing
from fathom.measure.loop import measure

WAIT_S = 30.0  # for another process, at most
RUN = RunSpec(workload="autoenc", preset="tiny", device="cpu", warmup=1, steps=4)


@pytest.fixture
def plug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine whose one meter is a plug-in; it is lost as soon as the file that is given here is there."""
    folder = tmp_path / "site"
    folder.mkdir()
    install_meter(folder, monkeypatch, PLUG)
    if any(meter.label != "wall plug" for meter in find_meters(Target())):
        pytest.skip("this machine has meters of its own")
    monkeypatch.setenv("LOST", str(tmp_path / "lost"))
    monkeypatch.setattr(sampler, "START_S", WAIT_S)
    monkeypatch.setattr(sampler, "STOP_S", WAIT_S)
    yield tmp_path / "lost"
    plugins._installed.cache_clear()


def until(what: str, happened: Callable[[], bool]) -> None:
    """Waits for another process."""
    last = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < last, f"not within {WAIT_S:g} s: {what}"


def running(samples: Sampler) -> psutil.Process:
    assert samples._process is not None
    return psutil.Process(samples._process.pid)


def lines(samples: Sampler) -> int:
    assert samples._file is not None
    return samples._file.read_bytes().count(b"\n") - 1


def stopped(samples: Sampler) -> Samples:
    found = samples.stop()
    assert found is not None
    return found


def test_it_loads_no_torch_and_nothing_that_takes_as_long() -> None:
    program = "import sys, fathom.machine.sampler, fathom.machine.meter as m; m.find_meters(m.Target(estimates=True)); "
    program += "print(sorted({'torch', 'numpy', 'pandas', 'scipy', 'rich', 'typer'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_without_meters_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "find_meters", lambda target: [])
    with Sampler(Target()) as samples:
        assert samples._process is None
        assert samples.stop() is None


@pytest.mark.usefixtures("plug")
def test_the_first_sample_is_there_before_and_the_last_one_after_what_is_measured() -> None:
    with Sampler(Target(), period_s=60.0) as samples:  # none of its own comes in between
        begin = time.monotonic()
        end = time.monotonic()
        found = stopped(samples)
    assert [first < begin <= end < last for first, last in [[sample.at for sample in found.samples]]] == [True]
    assert found.problems == []
    trace = found.traces(begin)[0]
    assert (trace.meter, trace.scope, trace.kind) == ("wall plug", "GPU 9", "counter")
    assert trace.joules[0] == 0
    # a reading was taken between its sample's moment and twice as late as its middle: the plug read a clock meanwhile
    (first, first_end), (last, last_end) = [(each.at, each.at + 2 * each.late_s[0] + 2e-6) for each in found.samples]
    assert 100 * (last - first_end) <= (trace.joules[-1] or 0.0) <= 100 * (last_end - first)


@pytest.mark.usefixtures("plug")
def test_its_own_cost_is_measured() -> None:
    with Sampler(Target(), period_s=0.001) as samples:
        until("20 samples", lambda: lines(samples) >= 20)
        found = stopped(samples)
    cost = found.cpu_s(found.samples[0].at, found.samples[-1].at)
    assert cost is not None
    assert cost == found.samples[-1].cpu_s - found.samples[0].cpu_s > 0
    assert all(len(sample.late_s) == 1 and sample.late_s[0] >= 0 for sample in found.samples)


PARENT = """
import os, sys, time
from fathom.machine.meter import Target
from fathom.machine.sampler import Sampler
with Sampler(Target(), period_s=0.01) as samples:
    child = os.fork() if {forks} else 1  # a child of the run holds the pipe open
    if child:
        print(samples._process.pid, samples._folder.name, child, flush=True)
    time.sleep(600)
"""


@pytest.mark.usefixtures("plug")
@pytest.mark.parametrize("forks", [False, True])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_its_parent_however_that_dies(number: signal.Signals, forks: bool) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(forks=forks)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid, _, child = parent.stdout.readline().split()
    sampling = psutil.Process(int(pid))
    try:
        parent.send_signal(number)
        parent.wait(WAIT_S)
        until("the sampler has ended", lambda: _gone(sampling))
    finally:
        if forks:
            os.kill(int(child), signal.SIGKILL)
        parent.communicate()


def _gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.usefixtures("plug")
def test_it_is_stopped_although_a_child_of_the_run_holds_its_pipe() -> None:
    with Sampler(Target(), period_s=0.01) as samples:
        child = os.fork()
        if not child:
            signal.pause()
            os._exit(0)
        try:
            found = stopped(samples)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert found.problems == [], "it was not killed for want of an answer"


def test_a_meter_that_is_lost_in_the_middle_leaves_what_it_showed(plug: Path) -> None:
    with Sampler(Target(), period_s=0.01) as samples:
        begin = time.monotonic()
        until("some samples", lambda: lines(samples) >= 10)
        plug.touch()
        before = lines(samples)
        until("some failed ones", lambda: lines(samples) >= 4 * before)
        end = time.monotonic()
        found = stopped(samples)
    assert found.problems == []
    assert 10 <= len(found.traces(begin)[0].seconds) < len(found.samples)
    assert energy_of(found, [("steps", begin, end)], 1) is None
    assert (
        "covered by readings of GPU 9 (wall plug): its energy is not known"
        in missing(found, [("steps", begin, end)])[0]
    )


@pytest.mark.usefixtures("plug")
def test_a_full_disk_ends_the_sampling_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    popen = subprocess.Popen

    def small(*arguments: object, **options: object) -> object:
        """No file may be larger than this: as on a disk with so much left, a part of the last line is written."""
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # noqa: E731
        return popen(*arguments, **options, preexec_fn=limit)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", small)
    with Sampler(Target(), period_s=0.001) as samples:
        process = running(samples)
        until("it has ended", lambda: _gone(process))
        found = stopped(samples)
    assert 0 < len(found.samples) < 20
    # a line is cut, or the limit falls between two lines
    assert found.problems in (["sampling ended: the disk is full"], ["sampling ended: File too large"])


@pytest.mark.usefixtures("plug")
def test_a_sampler_that_is_killed_is_named_and_what_it_wrote_counts() -> None:
    with Sampler(Target(), period_s=0.001) as samples:
        until("some samples", lambda: lines(samples) >= 5)
        process = running(samples)
        process.kill()
        until("it has ended", lambda: _gone(process))
        found = stopped(samples)
    assert found.problems == ["the sampler was ended by signal 9"]
    assert len(found.samples) >= 5


@pytest.mark.usefixtures("plug")
def test_a_sampler_that_cannot_be_started_stops_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    record = measure(RUN)
    assert record.outcome == "ok"
    assert record.energy is None
    assert "energy not metered: energy was not sampled" in record.notes[0]


@pytest.fixture
def patient(plug: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings speak for whatever lies beside them: a sampler that did not get a core for a while has not failed."""
    monkeypatch.setattr("fathom.measure.energy.REACH", 1e6)


@pytest.mark.usefixtures("patient")
def test_a_run_records_the_energy_of_its_timed_steps() -> None:
    record = measure(RUN)
    energy = record.energy
    assert energy is not None
    assert energy.steps == 4
    assert [stretch.name for stretch in energy.stretches] == ["setup", "warm-up", "steps"]
    steps = energy.stretches[-1]
    assert energy.window_s == pytest.approx(sum(record.step_s), abs=1e-6), "nothing lies between its steps"
    assert energy.window_s == pytest.approx(steps.end_s - steps.begin_s, abs=2e-6)
    assert all(
        before.end_s <= after.begin_s + 1e-6
        for before, after in zip(energy.stretches, energy.stretches[1:], strict=False)
    )
    assert energy.traces[0].seconds[0] < energy.stretches[0].begin_s, "sampled from before the first section"
    assert any("5 s are needed" in why for why in energy.invalid)


@pytest.mark.usefixtures("patient")
def test_a_run_with_a_budget_counts_its_chunks_and_not_what_lies_between() -> None:
    record = measure(RunSpec(workload="autoenc", preset="tiny", device="cpu", warmup=2, steps=40, budget_s=0.5))
    energy = record.energy
    assert energy is not None
    steps = [stretch for stretch in energy.stretches if stretch.name == "steps"]
    assert energy.window_s == pytest.approx(sum(stretch.end_s - stretch.begin_s for stretch in steps))
    assert energy.window_s >= sum(record.step_s)
    assert energy.steps == len(record.step_s)
    assert len(steps) > 1 or len(record.step_s) == 5


def test_a_meter_that_is_lost_during_a_run_leaves_a_record_that_says_so(plug: Path) -> None:
    plug.touch()
    record = measure(RUN)
    assert (record.outcome, record.energy) == ("ok", None)
    assert record.notes == ["energy not metered: no readings of GPU 9 (wall plug) while the steps ran"]


@pytest.mark.usefixtures("plug")
def test_starting_the_sampler_is_in_no_section(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes an hour here, on a clock that only this adds to."""
    real, begin = time.perf_counter, Sampler.__enter__
    ahead = 0.0

    def slow(self: Sampler) -> Sampler:
        nonlocal ahead
        found = begin(self)
        ahead = 3600.0
        return found

    monkeypatch.setattr(Sampler, "__enter__", slow)
    monkeypatch.setattr(time, "perf_counter", lambda: real() + ahead)
    sections = measure(RUN).sections
    assert all(value < 1800 for value in (sections.setup_s, sections.run_s, sections.main_s) if value is not None)


def test_slow_meters_show_nothing_between_their_answers() -> None:
    """Such samples are no readings: the trace has only those that show something."""
    row = [getattr(Reading(), name) for name in sampler.COLUMNS]
    told = [None, 50.0, *[None] * 4]
    found = Samples(
        sampler._Head([("IPMI DCMI", "board", "power")]),
        [sampler._Sample(float(at), [told if at % 3 == 0 else row], 0.0) for at in range(9)],
        1.0,
    )
    assert found.traces(0.0)[0].seconds == [0, 3, 6]


def test_throttle_bits_are_whole_numbers_again() -> None:
    """A card with every column, read back from a line as the sampler writes it: a record takes the trace."""
    full = Reading(joules=5.0, watts=300.0, clock_mhz=1980, memory_clock_mhz=3201, temperature_c=40, throttles=4)
    line = msgspec.json.encode(sampler._Sample(1.0, [[getattr(full, name) for name in sampler.COLUMNS]], 0.0))
    samples = [msgspec.json.decode(line, type=sampler._Sample)]
    (trace,) = Samples(sampler._Head([("NVML", "GPU 0", "counter")]), samples, 0.05).traces(0.0)
    assert trace.throttles == [4]
    assert type(trace.throttles[0]) is int
    assert msgspec.convert(msgspec.to_builtins(trace), PowerTrace) == trace


@pytest.mark.parametrize("damage", [b'{"at": 1.0, "rea', b"\0\0\0\n", b'{"at": "soon"}\n'])
def test_a_damaged_end_of_the_file_leaves_what_came_before(tmp_path: Path, damage: bytes) -> None:
    path, head = tmp_path / "samples", sampler._Head([("m", "GPU 0", "counter")])
    good = b'{"at":1.0,"readings":[[5.0,null,null,null,null,null]],"cpu_s":0.1,"late_s":[0.0]}\n'
    path.write_bytes(b'{"meters":[["m","GPU 0","counter"]]}\n' + good + damage)
    found = sampler._read(path, Samples(head, [], 0.05))
    assert [sample.at for sample in found.samples] == [1.0]
    assert found.problems == ([] if damage[-1:] != b"\n" else ["a sample cannot be read"])
