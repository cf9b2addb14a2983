"""Injected faults: whatever a workload, the system or a person does, a study keeps its records and leaves no process.

Most workers here are quick ones (faults/misdeeds.py): real processes that do not load torch.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from conftest import fathom as run_fathom
from killing import FAULTS, alive, ended, environment, outlived, workers

import fathom.workloads
from fathom.cli.commands.study import _chosen
from fathom.core.errors import BadOption, Refused
from fathom.core.events import OnProgress, no_progress
from fathom.core.fingerprint import Cpu, Machine
from fathom.core.record import Record, moment
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments import isolate
from fathom.experiments.isolate import failed, isolated
from fathom.experiments.study import run_all

GOOD = RunSpec(workload="quick", device="cpu", steps=3)
REAL = RunSpec(workload="faulty", preset="tiny", device="cpu", steps=3)
KILLED = "the worker was killed by SIGKILL, most likely out of memory"


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Workers know the faulty workload; and none is left when the test is over."""
    env = environment()
    for name in ("PYTHONPATH", "FATHOM_MARK", "FATHOM_TESTS"):
        monkeypatch.setenv(name, env[name])
    yield env["FATHOM_MARK"]
    assert ended(env["FATHOM_MARK"]) == []


@pytest.fixture
def quick(mark: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Workers whose steps take no time."""
    monkeypatch.setenv("FATHOM_QUICK", "0")
    return mark


def doing(misdeed: str) -> RunSpec:
    return replace(GOOD, options={"misdeed": misdeed})


def ran(*specs: RunSpec, store: Store) -> list[Record]:
    return [record for record, _ in run_all(specs, store, lambda index, spec: no_progress)]


OUT_OF_MEMORY = (  # who has no memory cannot always say so
    "MemoryError: ",
    "the worker exited with code 1 and left no record: MemoryError",
    "the worker was killed by SIGABRT",
    "the worker was killed by SIGSEGV",
    KILLED,
)
FATAL: dict[str, str | tuple[str, ...]] = {
    "raises": "RuntimeError: the third [/bold] wheel",
    "exits": "the worker exited with code 1 and left no record: had enough",
    "slips_away": "the worker exited with code 0 and left no record",
    "touches_nothing": "the worker was killed by SIGSEGV",
    "is_killed": KILLED,
    "runs_out_of_memory": OUT_OF_MEMORY,
    "prints_without_end": "the worker exited with code 3 and left no record: " + 300 * "x",
    "is_of_another_time": "the worker exited with code 0 and left no record; the worker's record: schema 99",
    "multiplies": "the worker exited with code 0 and left no record",
}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("misdeed", FATAL)
def test_a_workload_that_goes_wrong_is_a_failed_record_and_the_study_goes_on(misdeed: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, second = ran(doing(misdeed), GOOD, store=store)
    assert (first.outcome, second.outcome) == ("failed", "ok")
    assert first.reason is not None
    assert first.reason.startswith(FATAL[misdeed])
    assert first.reason.isprintable()
    assert list(store.records()) == [first, second]


@pytest.mark.parametrize("misdeed", ["babbles", "leaves_a_child", "leaves_a_daemon", "goes_on_twice"])
def test_a_workload_that_measures_well_is_believed_whatever_else_it_does(misdeed: str, quick: str) -> None:
    told: list[int] = []
    record = isolated(doing(misdeed), lambda done, total: told.append(done))
    assert (record.outcome, record.spec, len(record.step_s)) == ("ok", doing(misdeed), 3)
    assert told == [1, 2, 3]
    assert record.sections.wall_s is not None
    assert alive(quick) == []


@pytest.mark.parametrize("misdeed", ["hangs", "shuts_up"])
def test_a_worker_that_makes_no_step_any_more_is_ended(misdeed: str, quick: str) -> None:
    record = isolated(doing(misdeed), heartbeat_timeout_s=0.5)
    assert (record.outcome, record.reason) == ("failed", "no progress for 0.5 s (heartbeat timeout)")
    assert alive(quick) == []


def test_a_worker_that_hangs_after_its_record_has_measured_but_no_wall_time(
    quick: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolate, "EXIT_TIMEOUT_S", 0.2)
    record = isolated(doing("never_ends"))
    assert (record.outcome, record.sections.wall_s) == ("ok", None)
    assert "did not exit within 0.2 s of its record" in record.notes[-1]
    assert alive(quick) == []


def test_a_hanging_supervisor_is_killed_and_all_below_it(quick: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolate, "GRACE_PERIOD_S", 2.0)

    def freeze(done: int, total: int) -> None:
        (supervisor,) = workers()
        supervisor.suspend()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        isolated(doing("leaves_a_daemon"), freeze)
    assert alive(quick) == []


def test_a_system_that_starts_no_process_is_a_failed_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    record = failed(GOOD, "")
    monkeypatch.setattr(isolate, "failed", lambda spec, why: replace(record, reason=why))
    monkeypatch.setattr(subprocess, "Popen", refuse)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    assert isolated(GOOD).reason == "cannot start a worker: Resource temporarily unavailable"
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.usefixtures("quick")
def test_no_run_costs_the_study_a_file_descriptor() -> None:
    isolated(GOOD)
    gc.collect()  # tests before this one may have left files to it, which would be closed in the middle
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for misdeed in ("babbles", "is_killed", "leaves_a_child"):
        isolated(doing(misdeed))
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


# --- killed at a given moment


@pytest.mark.usefixtures("mark")
def test_killed_before_it_imports_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    start = subprocess.Popen

    def kill_at_once(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = start(command, **options)  # type: ignore[call-overload]
        if "fathom.worker" in command:
            process.kill()
        return process

    monkeypatch.setattr(subprocess, "Popen", kill_at_once)
    record = isolated(REAL)
    assert (record.outcome, record.reason) == ("failed", KILLED)


@pytest.mark.usefixtures("mark")
def test_killed_while_it_imports_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FATHOM_DIES_AT", "torch.nn")
    record = isolated(REAL)
    assert (record.outcome, record.reason) == ("failed", KILLED)


@pytest.mark.usefixtures("mark")
def test_killed_in_setup() -> None:
    record = isolated(replace(REAL, options={"fault": "killed in setup"}))
    assert (record.outcome, record.reason) == ("failed", KILLED)


@pytest.mark.usefixtures("quick")
def test_killed_while_it_writes_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    read, parts = os.read, []

    def kill_in_the_middle(descriptor: int, size: int) -> bytes:
        chunk = read(descriptor, min(size, 1000))
        if b'{"record"' in chunk:
            parts.append(chunk)
            (supervisor,) = workers()
            (worker,) = supervisor.children()
            worker.kill()
        return chunk

    monkeypatch.setattr(os, "read", kill_in_the_middle)
    record = isolated(replace(GOOD, options={"answers": 20_000}))
    assert len(parts) == 1, "a record of 300 KB does not fit in the pipe: the worker was still writing"
    assert (record.outcome, record.reason, record.answers) == ("failed", KILLED, [])


@pytest.mark.parametrize("seed", range(20))
def test_killed_at_a_random_moment_it_leaves_a_whole_record_or_a_failed_one(seed: int, quick: str) -> None:
    chance = random.Random(seed)

    def kill() -> None:
        with contextlib.suppress(psutil.NoSuchProcess):  # it may have ended since
            below = [process for worker in workers() for process in (worker, *worker.children(recursive=True))]
            if below:
                chance.choice(below).kill()

    killer = threading.Timer(chance.uniform(0, 0.3), kill)
    killer.start()
    record = isolated(replace(GOOD, options={"answers": 20_000, "misdeed": "leaves_a_daemon"}))
    killer.cancel()
    killer.join()
    assert (record.outcome, len(record.answers), record.reason) in {("ok", 20_000, None), ("failed", 0, KILLED)}
    assert alive(quick) == []


# --- the study is killed


@contextlib.contextmanager
def lone_study(spec: RunSpec) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A process that watches over one run, once the run is under way with all that it starts; and their mark."""
    env = environment(FATHOM_QUICK="0")
    program = "import json, sys; from fathom.experiments.isolate import isolated; "
    program += "from fathom.core.spec import RunSpec; isolated(RunSpec.from_json(json.loads(sys.argv[1])))"
    study = subprocess.Popen([sys.executable, "-c", program, json.dumps(spec.to_json())], env=env)
    try:
        while not any(_is_daemon(process) for process in alive(env["FATHOM_MARK"])):
            assert study.poll() is None
        yield study, env["FATHOM_MARK"]
    finally:
        ended(env["FATHOM_MARK"])
        study.wait()


def _is_daemon(process: psutil.Process) -> bool:
    try:
        return "time.sleep" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def test_a_killed_study_takes_its_worker_along_and_what_that_started() -> None:
    with lone_study(doing("leaves_a_daemon_and_hangs")) as (study, mark):
        below = alive(mark)
        assert len(below) >= 4, "study, supervisor, worker and daemon"
        study.kill()
        study.wait()
        assert outlived(below) == []
        assert outlived(alive(mark)) == []


def test_a_worker_does_not_outlive_its_supervisor() -> None:
    with lone_study(doing("leaves_a_daemon_and_hangs")) as (study, mark):
        (supervisor,) = psutil.Process(study.pid).children()
        worker = next(process for process in supervisor.children() if "fathom.worker" in process.cmdline())
        study.send_signal(signal.SIGSTOP)  # so that it cannot help
        supervisor.kill()
        assert outlived([worker]) == []
        study.send_signal(signal.SIGCONT)
        study.wait()
        assert alive(mark) == [], "now it can: the daemon is gone too"


def test_a_worker_whose_parent_was_gone_before_it_could_ask_does_not_begin() -> None:
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "fathom.worker", str(writer), "0", json.dumps(GOOD.to_json())]
    assert subprocess.run(command, pass_fds=[writer], check=False).returncode == 1
    os.close(writer)
    assert os.read(reader, 1) == b""
    os.close(reader)


# --- memory


@pytest.mark.usefixtures("mark")
@pytest.mark.parametrize("fault", ["device out of memory", "host out of memory"])
def test_out_of_memory_is_one_line_that_helps(fault: str, tmp_path: Path) -> None:
    (record,) = ran(replace(REAL, options={"fault": fault}), store=Store(tmp_path))
    assert record.outcome == "failed"
    assert record.reason == "batch 32 of faulty does not fit in the memory of cpu; try a smaller --batch"


@pytest.mark.gpu
def test_a_full_gpu_is_one_line_that_helps() -> None:
    with pytest.raises(Refused, match="does not fit in the memory of cuda"):
        isolated(RunSpec(workload="vgg", preset="paper", device="cuda", batch=1_000_000))


# --- the folder of records


def made(spec: RunSpec, _: OnProgress) -> Record:
    """A good run that takes no time and 20 KB."""
    machine = Machine(cpu=Cpu(name="a CPU", affinity=[0], logical_cores=1))
    answers = ["x" * 1000] * 20
    return Record(spec=spec, machine=machine, device="cpu", outcome="ok", step_s=[1.0], answers=answers)


def never(spec: RunSpec, _: OnProgress) -> Record:
    raise AssertionError("nothing is measured that cannot be kept")


MANY = [replace(GOOD, seed=number) for number in range(12)]


def good_seeds(store: Store) -> list[int]:
    return sorted(record.spec.seed or 0 for record in store.records() if record.outcome == "ok")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this system does not let a test mount a small disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_ends_the_study_with_a_line_and_room_lets_it_go_on(small_disk: Path) -> None:
    store = Store(small_disk)
    with pytest.raises(BadOption, match=r"No space left on device; this run is lost, earlier ones are kept"):
        list(run_all(store.remaining(MANY), store, lambda index, spec: no_progress, made))
    kept = good_seeds(store)
    assert kept == list(range(len(kept)))
    assert 0 < len(kept) < 12
    assert store.unreadable() == []
    assert not list(small_disk.glob(".*.part")), "the half record takes no room"
    subprocess.run(["mount", "-o", "remount,size=1m", str(small_disk)], check=True)
    list(run_all(store.remaining(MANY), store, lambda index, spec: no_progress, made))
    assert good_seeds(store) == list(range(12))


def test_a_disk_that_became_read_only_is_told_before_anything_is_measured(small_disk: Path) -> None:
    store = Store(small_disk)
    store.add(made(GOOD, lambda *_: None))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(BadOption, match="Read-only file system"):
        list(run_all(store.remaining(MANY), store, lambda index, spec: no_progress, never))
    assert good_seeds(store) == [0]


def test_a_file_in_the_place_of_the_folder_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "records").write_text("not a folder")
    store = Store(tmp_path / "records")
    with pytest.raises(BadOption, match="cannot write .*records.*: File exists"):
        list(run_all(store.remaining(MANY), store, lambda index, spec: no_progress, never))


def test_a_folder_that_vanishes_costs_what_was_in_it_and_no_more(tmp_path: Path) -> None:
    store = Store(tmp_path / "records")
    for number, _ in enumerate(run_all(store.remaining(MANY), store, lambda index, spec: no_progress, made)):
        if number == 4:
            shutil.rmtree(store.folder)
    assert good_seeds(store) == list(range(5, 12))
    assert [spec.seed for spec in store.remaining(MANY)] == list(range(5))


def test_what_failed_is_tried_again_and_the_newest_run_is_shown(tmp_path: Path) -> None:
    store, fails = Store(tmp_path), {3, 7}

    def run(spec: RunSpec, _: OnProgress) -> Record:
        return failed(spec, "bad luck") if spec.seed in fails else made(spec, _)

    def outcomes() -> list[str]:
        begun = moment()
        list(run_all(store.remaining(MANY), store, lambda index, spec: no_progress, run))
        return [record.outcome for record in _chosen(MANY, store, begun)]

    assert outcomes() == ["failed" if number in fails else "ok" for number in range(12)]
    fails.remove(3)
    assert outcomes() == ["failed" if number == 7 else "ok" for number in range(12)]
    assert len(list(store.records())) == 12 + 2, "the good ones are not run again"


def test_two_studies_of_one_folder_share_the_work(tmp_path: Path) -> None:
    env = environment(FATHOM_QUICK="0.005")
    command = [sys.executable, "-m", "little_study", str(tmp_path), "12"]
    store = Store(tmp_path)
    with store.lock(lambda: None):  # until both know what is left to do: all of it
        both = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        assert [study.stdout.readline() for study in both if study.stdout] == ["waiting\n"] * 2
    told = [sorted(line.split()[0] for line in study.communicate()[0].splitlines() if " " in line) for study in both]
    assert [study.returncode for study in both] == [0, 0]
    assert told[0] == told[1] == sorted(path.name for path in tmp_path.glob("*.json"))
    assert good_seeds(store) == list(range(12)), "nothing is measured twice"
    assert alive(env["FATHOM_MARK"]) == []


# --- the command line


STUDY = ["study", "autoenc", "residual", "--preset", "tiny", "--device", "cpu", "--json"]
TO_THE_GROUP, TO_THE_STUDY = os.killpg, os.kill


def _as_at_a_terminal() -> None:
    """Tests that are run in the background have Ctrl-C ignored, and so would the study, as it should."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("number", "send", "code", "line"),
    [
        (signal.SIGINT, TO_THE_GROUP, 130, "fathom: interrupted"),
        (signal.SIGTERM, TO_THE_STUDY, 143, "fathom: ended by SIGTERM"),
    ],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_a_stopped_study_keeps_what_it_has_and_goes_on_later(
    tmp_path: Path, number: int, send: object, code: int, line: str
) -> None:
    folder, env = tmp_path / "records", environment(FATHOM_QUICK="0.01")
    command = [sys.executable, "-m", "fathom", *STUDY, "--out", str(folder), "--report", str(tmp_path / "report.html")]
    study = subprocess.Popen(
        command,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_as_at_a_terminal,  # noqa: PLW1509  no other thread runs here
    )
    assert study.stderr is not None
    assert study.stderr.readline().startswith("  1 of 4  autoenc train on cpu: ")
    assert callable(send)
    send(study.pid, number)
    out, remarks = study.communicate()
    assert (study.returncode, out, remarks.splitlines()[-1]) == (code, "", line)
    assert remarks.count("\n") <= 2, "one line, and perhaps another run that was done"
    assert outlived(alive(env["FATHOM_MARK"])) == []
    kept = {path: path.read_bytes() for path in folder.glob("*.json")}
    assert len(kept) == len(list(Store(folder).records())) >= remarks.count("\n")
    if send is TO_THE_GROUP:
        done = subprocess.run(command, env=env | {"FATHOM_QUICK": "0"}, capture_output=True, text=True, check=True)
        assert [run["outcome"] for run in json.loads(done.stdout)["runs"]] == ["ok"] * 4
        assert kept.items() <= {path: path.read_bytes() for path in folder.glob("*.json")}.items()
        first = {record.spec.id: record for record in reversed(list(Store(folder).records()))}
        disturbed = sum(record.disturbed for record in first.values())  # by whatever else runs here beside the tests
        again = disturbed if disturbed <= 2 else 0  # of four: where most are disturbed, none is run again
        assert (len(first), len(list(Store(folder).records()))) == (4, 4 + again)


@pytest.mark.usefixtures("quick")
def test_the_last_words_of_a_workload_are_shown_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fathom.workloads, "__path__", [*fathom.workloads.__path__, str(FAULTS / "workloads")])
    assert run_fathom(monkeypatch, "run", "faulty", "--set", "misdeed=raises", "--out", str(tmp_path)) == 1
    assert "failed: RuntimeError: the third [/bold] wheel" in capsys.readouterr().out


@pytest.mark.usefixtures("quick")
def test_a_full_disk_is_one_line_and_exit_code_2(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "ballast").write_bytes(bytes(1 << 20))
    arguments = ["--out", str(small_disk / "records"), "--report", str(tmp_path / "report.html")]
    assert run_fathom(monkeypatch, *STUDY, *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("fathom: cannot write ")
    assert "No space left on device" in printed.err
    assert printed.err.count("\n") == 1
