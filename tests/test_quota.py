"""A CPU quota, as `docker --cpus 0.5` sets it: seen in every layout of control groups, and counted in items/s."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sample_records import record_of

from fathom.analysis.finding import analyse
from fathom.analysis.frame import frame
from fathom.analysis.step_time import step_time, throughput
from fathom.cli.commands import run, study
from fathom.core.fingerprint import Cpu
from fathom.core.record import Record
from fathom.machine.host import quota_cores
from fathom.report.runs import headline

HALF = {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"}
LAYOUTS: dict[str, tuple[str, dict[str, str]]] = {  # lines of /proc/self/cgroup, files below /sys/fs/cgroup
    "docker, version 2": ("0::/", {"cpu.max": "50000 100000"}),
    "a service of systemd": ("0::/system.slice/a.service", {"system.slice/a.service/cpu.max": "50000 100000"}),
    "a group above": ("0::/a/b/c", {"a/cpu.max": "50000 100000", "a/b/c/cpu.max": "max 100000"}),
    "the host's names in a container": ("0::/kubepods/pod1/one", {"cpu.max": "50000 100000"}),
    "docker, version 1": ("4:cpu,cpuacct:/docker/abc", {f"cpu,cpuacct/{name}": text for name, text in HALF.items()}),
    "the other order": ("4:cpuacct,cpu:/docker/abc", {f"cpu,cpuacct/{name}": text for name, text in HALF.items()}),
    "cpu alone": ("4:cpuacct,cpu:/abc", {f"cpu/abc/{name}": text for name, text in HALF.items()}),
    "both versions": ("0::/\n4:cpu,cpuacct:/x", {f"cpu,cpuacct/x/{name}": text for name, text in HALF.items()}),
    "version 2 beside 1": ("0::/x\n4:memory:/x", {"unified/x/cpu.max": "50000 100000"}),
    "among lines that mean nothing": ("\nnonsense\n0::/", {"cpu.max": "50000 100000"}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_quota_is_seen(tmp_path: Path, layout: str) -> None:
    lines, contents = LAYOUTS[layout]
    (tmp_path / "own").write_text(lines + "\n")
    for name, text in contents.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert quota_cores(tmp_path / "groups", tmp_path / "own") == 0.5


@pytest.mark.parametrize("text", ["max 100000", "-1 100000", "50000 0", "x y", "", "50000"])
def test_no_quota_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "own").write_text("0::/\n")
    (tmp_path / "cpu.max").write_text(text)
    assert quota_cores(tmp_path, tmp_path / "own") is None


def throttled(periods: int = 40) -> Record:
    """Half a core for two threads: of every 100 ms, 25 ms compute five steps, the last of which ends 75 ms later."""
    return record_of(step_s=[0.005, 0.005, 0.005, 0.005, 0.080] * periods, warmup_s=[], items_per_step=10)


def test_items_per_second_are_those_of_wall_time() -> None:
    record = throttled()
    assert step_time([record]).median == 0.005
    real = 10 * 5 / 0.1
    assert throughput([record]) == pytest.approx(real)
    assert throughput([record, throttled(periods=3)]) == pytest.approx(real)
    table = headline([record])
    assert table.rows[0][table.columns.index("items/s")] == pytest.approx(real)
    assert frame([record])["items_per_s"][0] == pytest.approx(real)
    assert study._row(record)["items/s"] == pytest.approx(real)
    assert dict(run._summary(record))["throughput"] == "500.0 items/s at 10 per step"
    steps = next(table for table in analyse("phases", [record]).tables if table.title == "Step times")
    assert steps.rows[0][steps.columns.index("items/s")] == pytest.approx(real)


def test_without_steps_or_items_there_is_no_throughput() -> None:
    assert throughput([]) is None
    assert throughput([record_of(step_s=[])]) is None
    assert throughput([record_of(items_per_step=None)]) is None


@pytest.mark.parametrize(
    ("quota", "threads", "note"),
    [
        (0.5, 2, "CPU quota of 0.5 cores, 2 threads used: steps are stopped at times, and items/s count that time"),
        (1.0, 4, "CPU quota of 1 core, 4 threads used: steps are stopped at times, and items/s count that time"),
        (0.5, 1, "CPU quota of 0.5 cores, 1 thread used: steps are stopped at times, and items/s count that time"),
        (2.0, 2, None),
        (None, 2, None),
        (0.5, None, None),
    ],
)
def test_a_quota_below_the_threads_is_noted(quota: float | None, threads: int | None, note: str | None) -> None:
    assert Cpu(name="x", quota_cores=quota, threads=threads).quota_notes == ([note] if note else [])


def test_a_run_under_a_quota_notes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from fathom.core.spec import RunSpec
    from fathom.machine.host import fingerprint
    from fathom.measure import loop

    def limited(device: object = None) -> object:
        here = fingerprint()
        return replace(here, cpu=replace(here.cpu, quota_cores=0.5, threads=2))

    monkeypatch.setattr(loop, "fingerprint", limited)
    record = loop.measure(RunSpec(workload="autoenc", preset="tiny", phase="infer", steps=2, device="cpu"))
    assert record.machine.cpu.quota_cores == 0.5
    assert any(note.startswith("CPU quota of 0.5 cores, 2 threads used") for note in record.notes)
