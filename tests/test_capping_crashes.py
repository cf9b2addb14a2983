"""Hundreds of seeded crashes of a sweep on a simulated card: the limit is restored in every one.

In most of them a kill is simulated: at one line of Fathom's the card and the journal are set aside, and put back as
they were once the process has unwound, as if it had ended there. Some are real processes and a real SIGKILL.
"""

from __future__ import annotations

import contextlib
import copy
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
import simulated_nvml as nvml
from crashing import VALUES, Stopped, at_checkpoints, at_lines, governors, handle_at_once, stop, stopped_by_signal
from simulated_card import Card, State

from fathom.core import stopping
from fathom.core.errors import CappingError
from fathom.experiments.capping import restore_from_journal, sweep
from fathom.experiments.journal import Journal
from fathom.experiments.signals import SIGNALS

CRASHES = int(os.environ.get("FATHOM_TEST_CRASHES", "400"))
SERIES = int(os.environ.get("FATHOM_CRASH_SERIES", "0"))  # as many others, by hand
KINDS = ("killed", "killed", "killed twice", "signals", "signals", "signals by a thread", "exception", "driver")
Tracer = Callable[[Mapping[int, Callable[[], None]]], AbstractContextManager[list[int]]]


class Killed(BaseException):
    """In the place of SIGKILL."""


@contextlib.contextmanager
def handlers_kept() -> Iterator[None]:
    """What a simulated kill has left in this process is gone, as with a real one."""
    before, mask = (
        {number: signal.getsignal(number) for number in SIGNALS},
        signal.pthread_sigmask(signal.SIG_BLOCK, ()),
    )
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)
        stopping._state.releasing.clear()


class World:
    """What outlives a process: the card and the journal."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, chance: random.Random) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self.journal = Journal(folder / "capping.json")
        self.limit_w = float(chance.choice([700, 650, 512.345]))
        state = State(limit_w=self.limit_w, lag_s=chance.choice([0.0, 0.0, 0.2]))
        self.driver = nvml.with_card(monkeypatch, Card(state=state))
        self.keep()

    def keep(self) -> None:
        journal = self.journal.path.read_bytes() if self.journal.path.exists() else None
        self.kept = copy.deepcopy(self.driver.card.state), self.driver.clock.now_s, journal

    def put_back(self) -> None:
        self.driver.card.state, self.driver.clock.now_s, journal = self.kept
        if journal is None:
            self.journal.path.unlink(missing_ok=True)
        else:
            self.journal.path.write_bytes(journal)
        self.journal.path.with_suffix(".lock").unlink(missing_ok=True)  # the system releases what a dead process held

    def kill(self) -> None:
        self.keep()
        raise Killed

    def rehearsed(self, action: Callable[[], object], at: Tracer = at_lines) -> int:
        """How many lines or checkpoints it has; it is then as if it had not been."""
        self.keep()
        with at({}) as count:
            action()
        self.put_back()
        return count[0]

    def killed_in(self, action: Callable[[], object], chance: random.Random) -> str:
        """At any line of it; tells what that has left."""
        line = chance.randint(1, self.rehearsed(action))
        with pytest.raises(Killed), at_lines({line: self.kill}):
            action()
        self.put_back()
        changed = self.settled_w() != self.limit_w
        return f"{'a' if self.journal.path.exists() else 'no'} journal, {'changed' if changed else 'unchanged'}"

    def settled_w(self) -> float:
        """The limit once late settings have taken effect; looking does not move the card."""
        state = self.driver.card.state
        return [state.limit_w, *(value or 0.0 for _, what, value in state.late if what == "limit_w")][-1]

    def sweep(self, run: Callable[[float], None] = lambda value: None) -> None:
        sweep(governors(), VALUES, run, self.journal, self.driver.clock)

    def restore(self) -> list[str]:
        return restore_from_journal(self.journal, self.driver.clock)


def killed(world: World, chance: random.Random, *, twice: bool) -> str:
    left = world.killed_in(world.sweep, chance)
    if twice:
        left = world.killed_in(world.restore, chance)
    world.restore()
    return left


def signalled(world: World, chance: random.Random, *, by_thread: bool) -> str:
    """Up to three, wherever Python runs handlers: nothing is left to be restored from the journal.

    The handlers of before are the command line's. A signal that another thread takes is handled in the main thread
    even where that blocks it.
    """
    points = world.rehearsed(world.sweep, at_checkpoints)
    moments = [chance.randint(1, points) for _ in range(chance.randint(1, 3))]
    send = handle_at_once if by_thread else signal.raise_signal
    actions = {moment: partial(send, chance.choice(SIGNALS)) for moment in moments}
    for number in SIGNALS:
        signal.signal(number, stop)
    with at_checkpoints(actions):
        assert stopped_by_signal(world.sweep)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
    assert not world.journal.path.exists()
    if by_thread:
        for number in SIGNALS:  # at most one that stands aside is left
            with pytest.raises(Stopped):
                signal.raise_signal(number)
    assert [signal.getsignal(number) for number in SIGNALS] == [stop] * 3
    return f"{len(actions)} signals"


def raising(world: World, chance: random.Random) -> str:
    unlucky = chance.choice(VALUES)

    def run(value: float) -> None:
        if value == unlucky:
            raise RuntimeError("the run")

    with pytest.raises(RuntimeError, match="the run"):
        world.sweep(run)
    assert not world.journal.path.exists()
    return f"at {unlucky:g} W"


def failing_driver(world: World, chance: random.Random) -> str:
    """From any call on no call is answered; once the card is back, the journal restores what is left."""
    state = world.driver.card.state
    world.sweep()
    calls, state.calls = state.calls, 0
    state.lost_after = chance.randint(0, calls - 1)
    with pytest.raises(CappingError, match="GPU is lost|no NVML power limit"):
        world.sweep()
    state.lost_after = None
    left = world.journal.path.exists()
    world.restore()
    return f"card lost, {'a' if left else 'no'} journal"


def crash(kind: str, world: World, chance: random.Random) -> str:
    match kind:
        case "signals" | "signals by a thread":
            return signalled(world, chance, by_thread=kind != "signals")
        case "exception":
            return raising(world, chance)
        case "driver":
            return failing_driver(world, chance)
        case _:
            return killed(world, chance, twice=kind == "killed twice")


def test_crashes_leave_no_limit_changed(tmp_path: Path) -> None:
    seen: Counter[tuple[str, str]] = Counter()
    for seed in range(SERIES * CRASHES, (SERIES + 1) * CRASHES):
        chance = random.Random(seed)
        kind = chance.choice(KINDS)
        with pytest.MonkeyPatch.context() as monkeypatch, handlers_kept():
            monkeypatch.setattr(os, "fsync", lambda _: None)  # a process that ends loses nothing that it has written
            world = World(tmp_path / "state", monkeypatch, chance)
            seen[kind, crash(kind, world, chance)] += 1
            assert world.settled_w() == world.limit_w, (seed, kind)
            assert not world.journal.path.exists(), (seed, kind)
            world.sweep()  # nothing is left that would hinder the next one
    assert seen.total() == CRASHES
    for left in ("no journal, unchanged", "a journal, unchanged", "a journal, changed"):
        assert seen["killed", left] > 0, seen
    assert not any(left == "no journal, changed" for _, left in seen), seen


def test_a_process_that_is_really_killed_leaves_a_journal_that_restores(tmp_path: Path) -> None:
    """At ten lines over the whole of the sweep, by SIGKILL; the card's state is a file that all processes share."""
    card, journal = tmp_path / "card", Journal(tmp_path / "capping.json")
    command = [sys.executable, "-m", "crashing", str(journal.path)]
    env = nvml.environment(card)
    done = subprocess.run([*command, "0"], env=env, capture_output=True, text=True, check=True)
    lines, changed = int(done.stdout), 0
    restoring = "import sys, pathlib; from fathom.experiments.capping import Journal, restore_from_journal; "
    restoring += "restore_from_journal(Journal(pathlib.Path(sys.argv[1])))"
    for number in range(10):
        env = nvml.environment(card)
        killed_process = subprocess.run([*command, str((2 * number + 1) * lines // 20)], env=env, check=False)
        assert killed_process.returncode == -signal.SIGKILL
        changed += nvml.loaded(card).limit_w != 700.0
        subprocess.run([sys.executable, "-c", restoring, str(journal.path)], env=env, check=True)
        assert nvml.loaded(card).limit_w == 700.0
        assert not journal.path.exists()
    assert changed > 2
