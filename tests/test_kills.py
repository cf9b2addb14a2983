"""Seeded random kills of a running study: no completed record is lost, damaged or measured twice.

Its runs take milliseconds and need no torch, all else is the real thing; benchmarks/kills.py does it to real workloads.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from killing import environment, seen, torment

from fathom.core.store import Store

KILLS = int(os.environ.get("FATHOM_TEST_KILLS", "40"))  # 100 of them take two minutes
RUNS = 40


@pytest.mark.slow
def test_kills_lose_nothing_and_duplicate_nothing(tmp_path: Path) -> None:
    victims: Counter[str] = Counter()
    for chapter in range(KILLS):
        folder, log = tmp_path / str(chapter), tmp_path / f"{chapter}.log"
        command = [sys.executable, "-m", "little_study", str(folder), str(RUNS)]
        env = environment(FATHOM_QUICK="0.002")
        victims += torment(command, folder, log, env, KILLS - victims.total(), seed=chapter, longest_s=0.5)
        _check(folder, log)
        if victims.total() == KILLS:
            break
    assert victims.keys() == {"study", "below"}
    assert min(victims.values()) > KILLS / 10, victims


def _check(folder: Path, log: Path) -> None:
    store = Store(folder)
    good = [record for record in store.records() if record.outcome == "ok"]
    seeds = sorted(record.spec.seed or 0 for record in good)
    assert seeds == list(range(RUNS)), f"one good record for each planned run\n{seen(folder, log)}"
    assert all(len(record.answers) == 8000 for record in good)
    assert store.unreadable() == []
    told = {line.split()[0] for line in log.read_text().splitlines() if line.endswith(" ok")}
    lost = told - {path.name for path in folder.glob("*.json")}
    assert lost == set(), f"reported as complete, but not there\n{seen(folder, log)}"
