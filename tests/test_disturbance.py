"""Other users of the machine: counted from the system's own counters, here made up, and never taken for quiet."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sample_records import GPU, op_row, profile_of, record_of

from fathom.analysis.compare import compare
from fathom.analysis.finding import analyse
from fathom.analysis.frame import frame
from fathom.analysis.selection import trusted
from fathom.core.disturbance import Disturbance
from fathom.core.record import GpuTime, Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments.study import run_all, to_run_again
from fathom.machine import cpu_speed, disturbance
from fathom.machine.disturbance import Reading, Watch, between
from fathom.machine.host import fingerprint, quota_cores
from fathom.measure import loop
from fathom.report import html, markdown
from fathom.report.runs import every_run, headline, trust

TICKS = os.sysconf("SC_CLK_TCK")
SELF, PARENT = os.getpid(), os.getpid() + 1_000_000


class System:
    """A made-up /proc and /sys/fs/cgroup; times are in seconds, of two cores that this process may use and a third."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proc, self.groups = root / "proc", root / "cgroup"
        self.proc.mkdir()
        monkeypatch.setattr(disturbance, "affinity", lambda: [0, 1])
        monkeypatch.setattr(disturbance, "usable_cores", lambda: 2)

    def cores(self, *cores: Sequence[float]) -> None:
        """User, nice, system, idle, iowait, irq, softirq, steal and guest seconds of each core."""
        lines = [(f"cpu{number}", core) for number, core in enumerate(cores)]
        whole = [sum(column) for column in zip(*cores, strict=True)]
        text = [
            " ".join([name, *(str(int(value * TICKS)) for value in core)]) for name, core in [("cpu", whole), *lines]
        ]
        (self.proc / "stat").write_text("\n".join([*text, "intr 12 3", "ctxt 99"]) + "\n")

    def process(self, number: int, parent: int, own: float, ended: float = 0.0, name: str = "python") -> None:
        ticks = [int(own * TICKS) - 3, 3, int(ended * TICKS), 0]
        fields = ["S", parent, *[0] * 9, *ticks, 20, 0]
        (self.proc / str(number)).mkdir(exist_ok=True)
        (self.proc / str(number) / "stat").write_text(f"{number} ({name}) {' '.join(map(str, fields))}\n")

    def quota(self, periods: int, throttled: int, line: str = "0::/job", folder: str = "job") -> None:
        (self.proc / "self").mkdir(exist_ok=True)
        (self.proc / "self" / "cgroup").write_text(line + "\n")
        (self.groups / folder).mkdir(parents=True, exist_ok=True)
        text = f"usage_usec 5\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 9\n"
        (self.groups / folder / "cpu.stat").write_text(text)

    def reading(self, at_s: float) -> Reading:
        return replace(disturbance.read(self.proc, self.groups), at_s=at_s, preempted=0)


BUSY = "Most were disturbed: run them again when the machine is quiet."


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    made = System(tmp_path, monkeypatch)
    made.cores([10, 0, 5, 100, 0, 0, 0, 0, 0], [10, 0, 5, 100, 0, 0, 0, 0, 0], [50, 0, 0, 0, 0, 0, 0, 0, 0])
    made.process(1, 0, 3.0, name="init")
    made.process(PARENT, 1, 2.0, ended=100.0)
    made.process(SELF, PARENT, 20.0)
    return made


def test_a_run_that_is_stopped_in_every_period_of_its_quota_says_so_in_plain_digits() -> None:
    assert Disturbance(throttled=1.0).reasons == ["100 % of the CPU quota's periods throttled"]
    assert Disturbance(steal=0.034).reasons == ["3.4 % of the CPU time taken by the hypervisor (steal)"]


def test_cpu_time_of_others_is_all_on_our_cores_less_our_own(system: System) -> None:
    before = system.reading(0.0)
    # in 10 s: 9 + 9 s on our two cores in all kinds of work, and the third core busy with what is not ours to count
    system.cores([16, 1, 6, 101, 0, 0.5, 0.5, 0, 3], [18, 0, 6, 101, 0, 0, 0, 0, 0], [60, 0, 0, 0, 0, 0, 0, 0, 0])
    system.process(SELF, PARENT, 30.0)
    system.process(PARENT, 1, 2.5, ended=160.0)  # it draws progress; what it waited for before was another run
    found = between(before, system.reading(10.0))
    assert found.others_cpu == pytest.approx((18 - 10 - 0.5) / 10)
    assert (found.cores, found.steal) == (2, 0)
    assert found.reasons == ["0.75 of 2 cores used by other processes"]


def test_what_the_run_starts_is_its_own_while_it_lives_and_after(system: System) -> None:
    system.process(SELF + 1, SELF, 1.0, name="loader) (x")
    system.process(SELF + 2, SELF + 1, 1.0)
    before = system.reading(0.0)
    system.cores([20, 0, 5, 100, 0, 0, 0, 0, 0], [20, 0, 5, 100, 0, 0, 0, 0, 0], [50, 0, 0, 0, 0, 0, 0, 0, 0])
    system.process(SELF, PARENT, 30.0, ended=2.0)
    system.process(SELF + 1, SELF, 4.0, name="loader) (x")
    system.process(SELF + 2, SELF + 1, 6.0)
    found = between(before, system.reading(10.0))
    assert found.others_cpu == pytest.approx(0.0), "10 + 2 + 3 + 5 s of 20"
    assert found.reasons == []


def test_steal_and_throttling_are_shares(system: System) -> None:
    system.quota(100, 10)
    before = system.reading(0.0)
    system.cores([10, 0, 5, 100, 0, 0, 0, 1.5, 0], [15, 0, 5, 100, 0, 0, 0, 0.5, 0], [50, 0, 0, 0, 0, 0, 0, 9, 0])
    system.process(SELF, PARENT, 25.0)
    system.quota(200, 35)
    found = between(before, system.reading(10.0))
    assert (found.steal, found.throttled) == pytest.approx((2 / 7, 0.25)), "2 s stolen beside 5 s of work"
    assert found.reasons == [
        "29 % of the CPU time taken by the hypervisor (steal)",
        "25 % of the CPU quota's periods throttled",
    ]


def test_steal_of_one_busy_thread_is_not_hidden_by_idle_cores(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disturbance, "usable_cores", lambda: 64)
    before = system.reading(0.0)
    system.cores([19.5, 0, 5, 100, 0, 0, 0, 0.5, 0], [10, 0, 5, 110, 0, 0, 0, 0, 0], [50, 0, 0, 0, 0, 0, 0, 0, 0])
    system.process(SELF, PARENT, 29.5)
    assert between(before, system.reading(10.0)).steal == pytest.approx(0.05)


def test_throttling_of_a_version_1_group_is_found(system: System) -> None:
    system.quota(100, 10, "3:cpu,cpuacct:/job", "cpu,cpuacct/job")
    assert list(system.reading(0.0).quotas.values()) == [(100, 10)]


@pytest.mark.parametrize(
    ("line", "files"),
    [
        ("0::/a/b", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}),
        ("3:cpu,cpuacct:/b", {"cpu,cpuacct/b/cpu.cfs_quota_us": "150000", "cpu,cpuacct/b/cpu.cfs_period_us": "100000"}),
    ],
    ids=["version 2, of the group above", "version 1"],
)
def test_the_quota_is_that_of_the_tightest_group(tmp_path: Path, line: str, files: dict[str, str]) -> None:
    (tmp_path / "own").write_text(line + "\n")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert quota_cores(tmp_path, tmp_path / "own") == 1.5


def test_a_group_without_a_quota_is_not_throttled(system: System) -> None:
    system.quota(0, 0)
    assert between(system.reading(0.0), system.reading(10.0)).throttled is None


def test_counters_that_show_nothing_are_not_a_quiet_machine(system: System) -> None:
    """Some containers have them empty, or frozen."""
    before = system.reading(0.0)
    system.process(SELF, PARENT, 30.0)
    assert between(before, system.reading(10.0)).others_cpu is None, "ours grew by 10 s, all together by none"
    (system.proc / "stat").write_text("cpu 0 0 0 0 0 0 0 0 0 0\n")
    assert system.reading(0.0).busy_s is None
    (system.proc / "stat").unlink()
    assert between(system.reading(0.0), system.reading(10.0)).others_cpu is None


def test_cores_with_other_numbers_are_counted_together(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disturbance, "affinity", lambda: [40, 41])
    assert system.reading(0.0).busy_s == pytest.approx(80)


def test_an_old_kernel_has_fewer_columns(system: System) -> None:
    (system.proc / "stat").write_text(f"cpu0 {10 * TICKS} 0 0 0\n")
    assert (system.reading(0.0).busy_s, system.reading(0.0).steal_s) == (10, 0)


def test_a_part_too_short_for_the_clock_ticks_says_nothing(system: System) -> None:
    found = between(system.reading(0.0), system.reading(disturbance.LEAST_S / 2))
    assert found == Disturbance(cores=2, load_before=found.load_before)


def readings(*others: float, seconds: float = 2.0) -> Callable[[], Reading]:
    """Looks so many seconds apart, with these cores used by others in between, and one by the run itself."""
    made, busy = [Reading(at_s=0.0, cores=2, busy_s=10.0, own_s=5.0, load=0.5)], 10.0
    for number, other in enumerate(others, start=1):
        busy += (1 + other) * seconds
        made.append(Reading(at_s=seconds * number, cores=2, busy_s=busy, own_s=5.0 + seconds * number, load=2.0))
    return iter(made).__next__


def test_the_worst_part_counts() -> None:
    watch = Watch(reader=readings(0.0, 0.4, 0.02))
    for _ in range(3):
        watch.look()
    assert watch.disturbance().others_cpu == pytest.approx(0.4)
    assert watch.disturbance().load_before == 0.5


@pytest.mark.parametrize(
    ("loops_ms", "expected", "reasons"),
    [
        ([2.0, 2.1, 2.2], 1.05, []),
        ([2.0, 9.0, 2.1], 1.05, []),  # one look says nothing of the others
        ([4.0, 8.0, 4.4], 2.2, ["CPU at 45 % of its fastest speed"]),
    ],
)
def test_a_core_that_is_slower_than_it_was_is_seen(
    loops_ms: list[float], expected: float, reasons: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cpu_speed.fastest_s(2e-3) == 2e-3
    looks = iter([Reading(at_s=number, cores=2, loop_s=loop / 1e3) for number, loop in enumerate(loops_ms)])
    watch = Watch(reader=looks.__next__)
    watch.look()
    watch.look()
    found = watch.disturbance()
    assert found.cpu_slowdown == pytest.approx(expected)
    assert found.loop_s == pytest.approx(statistics.median(loops_ms) / 1e3)
    assert found.reasons == reasons


def test_short_looks_between_chunks_of_steps_count_as_much_as_long_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The core was slow before the steps and after them, and fast beside them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    looks = iter([Reading(at_s=number, cores=2, loop_s=4e-3) for number in range(2)])
    beside = iter([2e-3, 2.1e-3, 2.2e-3])
    monkeypatch.setattr(disturbance, "loop_s", lambda loops: next(beside))
    watch = Watch(reader=looks.__next__)
    for _ in range(3):
        watch.time_core()
    watch.look()
    found = watch.disturbance()
    assert found.loop_s == pytest.approx(2.2e-3)
    assert found.step_loops_s == (2e-3, 2.1e-3, 2.2e-3)
    assert found.worst(Disturbance(steal=0.1)) == replace(found, steal=0.1)
    assert Disturbance(steal=0.1).worst(found) == replace(found, steal=0.1)


def test_a_record_has_the_speed_of_the_core_beside_its_steps() -> None:
    """Before and after them, while torch was imported, it was another one; all else counts at its worst."""
    run = Disturbance(loop_s=2e-4, cpu_slowdown=2.2, steal=0.3)
    found = Disturbance(loop_s=1e-4, cpu_slowdown=1.1, steal=0.0).within(run)
    assert (found.loop_s, found.cpu_slowdown, found.steal) == (1e-4, 1.1, 0.3)
    assert Disturbance(steal=0.1).within(run) == run


def test_the_fastest_loop_is_kept_and_a_damaged_file_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert [cpu_speed.fastest_s(seen) for seen in (3.0, 2.0, 4.0)] == [3.0, 2.0, 2.0]
    (kept,) = (tmp_path / "fathom").iterdir()
    for damage in ("", "[1]", "-1", "1e-9", "NaN", '"fast"', "{"):
        kept.write_text(damage)
        assert cpu_speed.fastest_s(3.0) == 3.0
        assert cpu_speed.fastest_s(5.0) == 3.0
    kept.unlink()
    (tmp_path / "fathom").rmdir()
    (tmp_path / "fathom").write_text("a file where the folder should be")
    assert cpu_speed.fastest_s(3.0) == 3.0


def test_short_parts_are_judged_together() -> None:
    watch = Watch(reader=readings(0.0, 0.9, seconds=0.6))
    watch.look()
    assert watch.disturbance().others_cpu is None
    watch.look()
    assert watch.disturbance().others_cpu == pytest.approx(0.45)


def test_the_gpu_is_asked_at_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    shared, bits = iter([False, True, False]), iter([0x1, 0x4 | 0x40, 0x1])
    monkeypatch.setattr(disturbance, "gpu_shared", lambda device: next(shared))
    monkeypatch.setattr(disturbance, "gpu_throttles", lambda device: next(bits))
    watch = Watch(torch.device("cuda"), reader=readings(0.0, 0.0))
    watch.look()
    watch.look()
    found = watch.disturbance()
    assert (found.gpu_shared, found.gpu_throttles) == (True, 0x45)
    assert found.reasons == ["other programs on the GPU", "GPU clocks lowered: hardware thermal slowdown"]


@pytest.mark.parametrize(
    "quiet",
    [
        {},
        {"others_cpu": 0.03, "cores": 2, "steal": 0.005, "throttled": 0.0, "load_before": 4.0},
        {"others_cpu": 0.3, "cores": 16},
        {"load_before": 2.5, "cores": 2},
        {"gpu_shared": False, "gpu_throttles": 0x1 | 0x4},
    ],
    ids=["nobody looked", "a daemon", "daemons of many cores", "earlier runs", "idle, and then at its power limit"],
)
def test_a_quiet_machine_is_not_disturbed(quiet: dict[str, Any]) -> None:
    assert Disturbance(**quiet).reasons == []


@pytest.mark.parametrize(
    ("busy", "reason"),
    [
        ({"others_cpu": 0.11, "cores": 2}, "0.11 of 2 cores used by other processes"),
        ({"others_cpu": 0.33, "cores": 16}, "0.33 of 16 cores used by other processes"),
        ({"load_before": 6.0, "cores": 2}, "load average of 6.0 before the run on 2 cores"),
    ],
)
def test_a_busy_one_is(busy: dict[str, Any], reason: str) -> None:
    assert Disturbance(**busy).reasons == [reason]


def test_a_profiler_that_makes_steps_faster_is_a_sign_too() -> None:
    profile = profile_of([op_row("MatMul", 0.5)], step_s=[0.51] * 6, plain_step_s=[1.0] * 6)
    assert record_of(profile=profile).disturbances == ["0.51 profiled over unprofiled step time"]
    assert not record_of(profile=replace(profile, step_s=[0.95] * 6)).disturbed


@pytest.mark.parametrize(
    ("busy_s", "free_s", "disturbed"),
    [(0.96, [1.0] * 6, False), (0.94, [1.0] * 6, True), (0.96, [], True), (0.96, [2.0] * 6, True)],
    ids=["busy", "waiting", "waited for one by one", "waiting when free-running"],
)
def test_a_slow_host_does_not_disturb_a_step_that_keeps_the_gpu_busy(
    busy_s: float, free_s: list[float], disturbed: bool
) -> None:
    gpu = GpuTime(
        span_s=1.0, kernel_s=busy_s, memcpy_s=0.0, memset_s=0.0, busy_s=busy_s, starved_s=0.0, gaps=1.0,
        longest_gap_s=0.01, activities=10.0, api=[],
    )  # fmt: skip
    profile = profile_of([op_row("MatMul", 1.0, place=GPU)], gpu=gpu, free_step_s=free_s)
    slow = record_of(place=GPU, profile=profile, disturbance=Disturbance(cpu_slowdown=2.0, steal=0.1, others_cpu=3.0))
    assert slow.disturbed == disturbed
    shared = replace(slow, disturbance=Disturbance(cpu_slowdown=2.0, gpu_shared=True))
    assert "other programs on the GPU" in shared.disturbances


def test_a_measured_run_says_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole process is looked at, and of it the timed and the profiled pass; the worst of all is recorded."""
    made: list[FakeWatch] = []

    class FakeWatch:
        def __init__(self, device: torch.device | None = None) -> None:
            self.number, self.looks = len(made), 1
            made.append(self)

        def look(self) -> None:
            self.looks += 1

        def disturbance(self) -> Disturbance:
            return Disturbance(others_cpu=[0.2, 0.7][self.number], cores=2)

    monkeypatch.setattr(loop, "Watch", FakeWatch)
    record = loop.measure(RunSpec(workload="autoenc", preset="tiny", device="cpu", steps=2))
    assert record.disturbances == ["0.7 of 2 cores used by other processes"]
    assert [watch.looks for watch in made] == [2, 3]


def test_a_failed_run_is_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Record:
        raise RuntimeError("broken")

    monkeypatch.setattr(loop, "Watch", FakeLook)
    found = loop.recorded(RunSpec(workload="autoenc"), broken)
    assert (found.outcome, found.disturbance.others_cpu) == ("failed", 0.5)


class FakeLook:
    def look(self) -> None:
        pass

    def disturbance(self) -> Disturbance:
        return Disturbance(others_cpu=0.5, cores=2)


# what becomes of a disturbed run

CROWDED, QUIET = Disturbance(others_cpu=1.4, cores=2), Disturbance(others_cpu=0.01, cores=2)


def run_of(workload: str = "memnet", step_s: float = 1.0, disturbance: Disturbance = QUIET, **changes: Any) -> Record:
    return record_of(workload, step_s=[step_s] * 10, disturbance=disturbance, **changes)


def test_an_undisturbed_run_of_the_same_work_is_used() -> None:
    crowded, quiet, other = run_of(step_s=11.9, disturbance=CROWDED), run_of(step_s=3.7), run_of("vgg", 2.0, CROWDED)
    elsewhere = run_of(step_s=0.1, disturbance=CROWDED, place=GPU)
    failed = run_of("vgg", outcome="failed", reason="out of memory")
    assert trusted([crowded, quiet, other, elsewhere, failed]) == [quiet, other, elsewhere, failed]


def medians(records: Sequence[Record]) -> dict[object, object]:
    table = headline(records)
    return {row[0]: (row[table.columns.index("step (ms)")], row[-1]) for row in table.rows}


def test_a_headline_is_never_disturbed_in_silence() -> None:
    crowded, quiet = run_of(step_s=11.9, disturbance=CROWDED), run_of(step_s=3.7)
    assert medians([crowded, quiet]) == {"memnet": (pytest.approx(3700), "ok")}
    assert medians([crowded]) == {"memnet": (pytest.approx(11900), "disturbed")}
    both = medians([crowded, run_of(outcome="failed", step_s=1.0)])
    assert both["memnet"] == (pytest.approx(11900), "disturbed, 1 of 2 failed")
    assert headline([crowded]).alarms == [(0, len(headline([crowded]).columns) - 1)]


@pytest.mark.parametrize(("question", "title"), [("phases", "Step times"), ("suite", "Measured step times")])
def test_step_times_of_an_answer_are_those_of_the_headline(question: str, title: str) -> None:
    """A study and its repeated launches have other numbers of steps, and are one configuration."""
    crowded, quiet = run_of(step_s=11.9, disturbance=CROWDED, spec={"steps": 200}), run_of(step_s=3.7)
    finding = analyse(question, [crowded, quiet])
    (row,) = next(table.rows for table in finding.tables if table.title.startswith(title))
    assert pytest.approx(3700) in row
    assert pytest.approx(7800) not in row


def test_the_list_of_runs_says_what_disturbed_each() -> None:
    table = every_run([run_of(disturbance=CROWDED), run_of("vgg")])
    column = table.columns.index("disturbed")
    assert [row[column] for row in table.rows] == ["1.4 of 2 cores used by other processes", None]
    assert (0, column) in table.alarms
    assert (1, column) not in table.alarms
    assert "disturbed" not in every_run([run_of()]).columns


@pytest.mark.parametrize(
    ("crowded", "quiet", "unknown", "text"),
    [
        (6, 41, 0, "41 of 47 runs were undisturbed."),
        (3, 3, 0, "3 of 6 runs were undisturbed."),
        (1, 0, 0, f"0 of 1 run was undisturbed. {BUSY}"),
        (3, 2, 1, f"2 of 5 runs were undisturbed. {BUSY} 1 more was not checked."),
        (1, 3, 2, "3 of 4 runs were undisturbed. 2 more were not checked."),
        (0, 0, 3, "No run was checked for disturbance."),
        (0, 0, 0, "No run succeeded."),
    ],
)
def test_the_top_of_a_report_says_how_many_runs_are_to_be_trusted(
    crowded: int, quiet: int, unknown: int, text: str
) -> None:
    counts = {CROWDED: crowded, QUIET: quiet, Disturbance(): unknown}
    records = [run_of(disturbance=kind) for kind, count in counts.items() for _ in range(count)]
    records.append(run_of(outcome="failed", disturbance=CROWDED))
    assert trust(records) == text
    assert markdown(records, [], "A study").splitlines()[2] == text
    page = html(records, [], "A study")
    assert page.index(text) < page.index('<section id="summary">')


def test_records_without_counters_are_not_called_those_of_a_busy_machine() -> None:
    """Profiled steps that are faster than plain ones are disturbed; nobody looked at the other runs."""
    profile = profile_of([op_row("MatMul", 0.5)], step_s=[0.51] * 6, plain_step_s=[1.0] * 6)
    odd, old = record_of(profile=profile), record_of()
    assert trust([odd, *[old] * 4]) == "1 of 5 runs was disturbed. The other 4 were not checked."
    assert trust([odd, odd]) == "2 of 2 runs were disturbed."


FIVE = ("memnet", "speech", "autoenc", "residual", "alexnet")


def test_an_answer_from_a_disturbed_run_has_a_note() -> None:
    crowded = run_of(step_s=11.9, disturbance=CROWDED, spec={"phase": "infer"})
    quiet = run_of("vgg", spec={"phase": "infer"})
    note = analyse("phases", [crowded, quiet]).notes[0]
    runs = "memnet infer on Laptop CPU, 4 cores (small)"
    assert note == f"Disturbed, so that their times are not to be trusted: {runs}."
    beside = run_of("alexnet", disturbance=CROWDED, spec={"kind": "training"})  # which has no place in this answer
    assert analyse("phases", [crowded, quiet, beside]).notes[0] == note, "a run that cannot enter is not named"
    assert not analyse("variance", [crowded, quiet]).notes, "nothing was answered"
    many = [replace(crowded, spec=replace(crowded.spec, workload=name)) for name in FIVE]
    assert analyse("phases", [*many, quiet]).notes[0].startswith("Without disturbed runs, whose times are not to be")
    again = run_of(step_s=3.7, spec={"phase": "infer"})
    notes = analyse("phases", [crowded, quiet, again]).notes
    assert notes[0] == "Not shown: 1 disturbed run, of which an undisturbed one was made."
    assert not any("Disturbed" in each for each in notes)
    assert not any("Disturbed" in each for each in analyse("breakdown", [crowded, quiet]).notes), "it has no profile"


def test_a_comparison_counts_its_disturbed_launches() -> None:
    (each,) = compare([run_of(disturbance=CROWDED)], [run_of(), run_of()])
    assert "1 of 3 launches were disturbed" in each.remark
    (each,) = compare([run_of(disturbance=CROWDED), run_of()], [run_of(), run_of()])
    assert "disturbed" not in each.remark, "it was made again"


def test_a_frame_has_it_and_leaves_it_out_where_nobody_looked() -> None:
    table = frame([run_of(disturbance=CROWDED), run_of(), run_of(disturbance=Disturbance())])
    assert table["disturbed"].tolist()[:2] == [True, False]
    assert table["disturbed"].isna().tolist() == [False, False, True]
    assert table["others_cpu"].tolist()[:2] == [1.4, 0.01]


def planned(*seeds: int) -> list[RunSpec]:
    return [RunSpec(workload="autoenc", seed=seed) for seed in seeds]


def made(spec: RunSpec, disturbance: Disturbance, outcome: str = "ok") -> Record:
    return record_of(spec={"seed": spec.seed}, disturbance=disturbance, outcome=outcome)


def test_disturbed_runs_are_to_be_made_once_more_and_no_oftener() -> None:
    a, b, c = planned(1, 2, 3)
    first = [made(a, CROWDED), made(b, QUIET), made(c, CROWDED, outcome="failed")]
    assert to_run_again([a, b, c], first) == [a], "one that failed is not run again"
    assert to_run_again([a, b, c], [*first, made(a, QUIET)]) == []
    assert to_run_again([a, b, c], [*first, made(a, CROWDED)]) == [], "it has had its second chance"


def test_of_many_runs_of_one_spec_as_many_as_were_disturbed_are_made_again() -> None:
    (a,) = planned(1)
    five = [made(a, CROWDED), made(a, QUIET), made(a, CROWDED), made(a, QUIET), made(a, QUIET)]
    assert to_run_again([a] * 5, five) == [a, a]
    assert to_run_again([a] * 5, [*five, made(a, QUIET), made(a, CROWDED)]) == [a], "four are sound"
    assert to_run_again([a] * 3, five) == [], "three were wanted, and are there"


def test_both_records_are_kept(tmp_path: Path) -> None:
    store, specs = Store(tmp_path), planned(1, 2)
    seen = iter([CROWDED, QUIET, QUIET])

    def run(spec: RunSpec, _: object) -> Record:
        return made(spec, next(seen))

    list(run_all(specs, store, lambda index, spec: lambda done, total: None, run))
    again = to_run_again(specs, store.records())
    list(run_all(again, store, lambda index, spec: lambda done, total: None, run))
    assert [record.disturbed for record in store.records() if record.spec.seed == 1] == [True, False]
    assert len(list(store.records())) == 3
    assert to_run_again(specs, store.records()) == []


def test_an_outer_group_that_was_throttled_long_ago_hides_nothing() -> None:
    before = Reading(at_s=0.0, cores=2, quotas={"outer": (9000, 5000), "own": (100, 0)})
    after = Reading(at_s=10.0, cores=2, quotas={"outer": (9100, 5000), "own": (200, 100)})
    assert between(before, after).throttled == 1.0


def test_of_a_path_in_the_environment_the_last_part_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_LOG_DIRECTORY", "/somewhere/mps-log")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    told = fingerprint().environment
    assert (told["CUDA_MPS_LOG_DIRECTORY"], told["OMP_NUM_THREADS"]) == ("mps-log", "2")
