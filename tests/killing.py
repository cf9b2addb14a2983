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

FAULTS = Path(__file__).parent / "faults"
PATIENCE_S, LONGEST_S = 20.0, 600.0  # for what was killed, and for a study that ends by itself: then the test fails


def environment(**more: str) -> dict[str, str]:
    """For a process that shall know the faulty workloads, with a mark that all it starts inherit."""
    path = os.pathsep.join(filter(None, [str(FAULTS), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "FATHOM_MARK": uuid.uuid4().hex, **more}


def alive(mark: str) -> list[psutil.Process]:
    """Every other process with this mark."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get("FATHOM_MARK") == mark:
                found.append(process)
    return found


def outlived(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those that do not end, given a moment. A zombie has ended: its new parent may take its time to notice."""
    deadline = time.monotonic() + PATIENCE_S
    alive = list(processes)
    while alive and time.monotonic() < deadline:
        alive = [process for process in psutil.wait_procs(alive, timeout=0.01)[1] if not _is_zombie(process)]
    return alive


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def torment(
    command: Sequence[str], folder: Path, log: Path, env: Mapping[str, str], kills: int, seed: int, longest_s: float
) -> Counter[str]:
    """Starts the study until it ends well, killing it or somebody below it every so often; gives how often whom.

    A record that was in the folder at one kill must be there unchanged at the next.
    """
    chance = random.Random(seed)
    victims: Counter[str] = Counter()
    records: dict[Path, bytes] = {}
    while True:
        with log.open("a") as file:
            study = subprocess.Popen(command, env=env, stdout=file, stderr=file, start_new_session=True)
        try:
            while victims.total() < kills and not _ends_within(study, chance.uniform(0, longest_s)):
                victims += _killed(study, chance)
                before, records = records, _files(folder)
                assert before.items() <= records.items(), "a record was lost or changed"
            study.wait(LONGEST_S)
        finally:
            study.kill()
        if study.returncode == 0:
            assert alive(env["FATHOM_MARK"]) == []
            return victims
        assert study.returncode in {1, -9}, log.read_text()


def _ends_within(study: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        return study.wait(seconds) is not None
    except subprocess.TimeoutExpired:
        return False


def _killed(study: subprocess.Popen[bytes], chance: random.Random) -> Counter[str]:
    """The study or somebody below it, who must take all below him along."""
    try:
        top = psutil.Process(study.pid)
        victim = chance.choice([top, top, *top.children(recursive=True)])
        below = victim.children(recursive=True)
        victim.kill()
    except psutil.NoSuchProcess:
        return Counter()
    assert outlived(below) == [], f"{victim} was killed"
    return Counter(["study" if victim == top else "below"])


def _files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.glob("*.json")}
