"""Killing a running study and the processes below it at random, seeded moments; and finding what outlived it."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from fathom.experiments.isolate import RUN_TAG

FAULTS = Path(__file__).parent / "faults"
PATIENCE_S, LONGEST_S = 20.0, 600.0  # for what was killed, and for a study that ends by itself: then the test fails
PAUSE_S = 0.005  # between two looks at what a study has started


def workers() -> list[psutil.Process]:
    """Of this process, which may have children of other tests: multiprocessing's resource tracker stays.

    One that has ended, and that nobody has waited for yet, has no command line.
    """
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.ZombieProcess, psutil.NoSuchProcess):
            if "fathom.worker" in child.cmdline():
                found.append(child)
    return found


def environment(**more: str) -> dict[str, str]:
    """For a process that shall know the faulty workloads, with a mark that all it starts inherit."""
    path = os.pathsep.join(filter(None, [str(FAULTS), os.environ.get("PYTHONPATH")]))
    marks = {"FATHOM_MARK": uuid.uuid4().hex, "FATHOM_TESTS": str(os.getpid())}
    return {**os.environ, "PYTHONPATH": path, **marks, **more}


def alive(mark: str, variable: str = "FATHOM_MARK") -> list[psutil.Process]:
    """Every other process with this mark."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(variable) == mark:
                found.append(process)
    return found


def ended(mark: str) -> list[str]:
    """Kills every other process with this mark, so that a failure leaves nobody behind either; says who they were."""
    lines = []
    for process in alive(mark):
        lines.append(_described(process))
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return lines


def outlived(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those that do not end, given a moment. A zombie has ended: its new parent may take its time to notice."""
    deadline = time.monotonic() + PATIENCE_S
    alive = list(processes)
    while alive and time.monotonic() < deadline:
        alive = [process for process in psutil.wait_procs(alive, timeout=0.01)[1] if not _is_zombie(process)]
    return alive


def described(processes: Sequence[psutil.Process]) -> str:
    """One line each, for the message of a test that fails: who it is, whose child, how old, what it runs."""
    return "\n".join(map(_described, processes)) or "none"


def _described(process: psutil.Process) -> str:
    try:
        with process.oneshot():
            age_s = time.time() - process.create_time()
            command = " ".join(process.cmdline())[:300]
            return f"{process.pid} below {process.ppid()}, {process.status()}, {age_s:.1f} s old: {command}"
    except psutil.Error as error:
        return str(error)


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def torment(
    command: Sequence[str], folder: Path, log: Path, env: Mapping[str, str], kills: int, seed: int, longest_s: float
) -> Counter[str]:
    """Starts the study until it ends well, killing it or somebody below it every so often; gives how often whom.

    A record that was in the folder at one kill must be there unchanged at the next. A failure tells what was seen.
    """
    chance = random.Random(seed)
    victims: Counter[str] = Counter()
    history: list[str] = []
    records: dict[Path, bytes] = {}
    while True:
        with log.open("a") as file:
            study = subprocess.Popen(command, env=env, stdout=file, stderr=file, start_new_session=True)
        history.append(f"study {study.pid} started")
        try:
            while victims.total() < kills and study.poll() is None:
                victims += _killed(study, folder, chance, longest_s, history)
                before, records = records, _files(folder)
                lost = [path.name for path, content in before.items() if records.get(path) != content]
                assert lost == [], "a record was lost or changed"
            study.wait(LONGEST_S)
            history.append(f"study {study.pid} ended with code {study.returncode}")
            assert study.returncode in {0, 1, -9}, "the study ended neither by itself nor by our kill"
            assert "Traceback (most recent call last)" not in log.read_text(), "the study crashed"
            if study.returncode == 0:
                left = outlived(alive(env["FATHOM_MARK"]))
                assert left == [], f"outlived the study:\n{described(left)}"
                return victims
        except BaseException as failure:  # Ctrl-C too: a study has a session of its own and would go on
            told = seen(folder, log, history, env["FATHOM_MARK"])
            ended(env["FATHOM_MARK"])
            study.wait()
            if isinstance(failure, AssertionError | subprocess.TimeoutExpired):
                raise AssertionError(f"{failure}\n{told}") from failure
            raise


def seen(folder: Path, log: Path, history: Sequence[str] = (), mark: str = "") -> str:
    """What there is to learn from a failure: the last kills, the processes, the records and the end of the log."""
    parts = {
        "last events": "\n".join(history[-12:]),
        "processes still alive": described(alive(mark)) if mark else "",
        "records": "\n".join(f"{path.name} {path.stat().st_size} bytes" for path in sorted(folder.glob("*"))),
        "end of the log": "\n".join(log.read_text(errors="replace").splitlines()[-20:]) if log.exists() else "no log",
    }
    return "\n".join(f"--- {name}\n{text}" for name, text in parts.items() if text)


def _killed(
    study: subprocess.Popen[bytes], folder: Path, chance: random.Random, longest_s: float, history: list[str]
) -> Counter[str]:
    """The study or, as often, somebody below it, who must take all below him along.

    Whom to kill is drawn first, and somebody below is waited for: on a loaded machine a study may need longer to start
    its first worker than the longest time between two kills.
    """
    kind = chance.choice(["study", "below"])
    top = psutil.Process(study.pid)
    if kind == "below" and not _below(study, top):
        return Counter()
    if _ends_within(study, chance.uniform(0, longest_s)):
        return Counter()
    while found := [top] if kind == "study" else _below(study, top):
        victim, records = chance.choice(found), _count(folder)
        try:
            run, supervises = victim.environ().get(RUN_TAG), victim.ppid() == study.pid
            below = victim.children(recursive=True)
            line = _described(victim)
            victim.kill()
            break
        except psutil.NoSuchProcess:  # it ended by itself; then another one
            if study.poll() is not None:
                return Counter()
    else:
        return Counter()
    history.append(f"killed {line}; below it: {[process.pid for process in below]}")
    if supervises and run:
        # Only the study can end a daemon of this run now. It has done so when it keeps the run's record.
        while _count(folder) == records and not _ends_within(study, PAUSE_S):
            pass
        below += alive(run, RUN_TAG)
    left = outlived(below)
    assert left == [], f"outlived its parent:\n{described(left)}"
    return Counter([kind])


def _below(study: subprocess.Popen[bytes], top: psutil.Process) -> list[psutil.Process]:
    """What the study has started, once there is something; nothing where the study ended instead."""
    while not _ends_within(study, PAUSE_S):
        with contextlib.suppress(psutil.NoSuchProcess):
            if found := top.children(recursive=True):
                return found
    return []


def _ends_within(study: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        return study.wait(seconds) is not None
    except subprocess.TimeoutExpired:
        return False


def _files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.glob("*.json")}


def _count(folder: Path) -> int:
    return sum(1 for _ in folder.glob("*.json"))
