"""Signals at every point of a Deferral where Python runs handlers, and at every two of them: none is lost or kept."""

from __future__ import annotations

import importlib
import itertools
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
from crashing import Stopped, at_checkpoints, handle_at_once, stop, stopped_by_signal

from fathom.experiments.signals import SIGNALS, Deferral

INT, TERM, HUP = SIGNALS
TRIPLES = 1000
NEAR = 12  # points: the handlers of one signal are between them
SERIES = int(os.environ.get("FATHOM_CRASH_SERIES", "0"))  # other signals, by hand
Send = Callable[[int], None]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.signal(number, stop) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def work(done: list[str]) -> None:
    with Deferral() as signals:
        with signals.critical():
            done.append("begun")
            done.append("ended")
        done.append("after")


def points() -> int:
    with at_checkpoints({}) as count:
        work([])
    return count[0]


def at(moments: Mapping[int, int], send: Send = signal.raise_signal) -> int:
    """How many of the signals came; what must hold wherever they do is checked."""
    done: list[str] = []
    sent = Counter[int]()

    def counted(number: int) -> None:
        sent[number] += 1
        send(number)

    with at_checkpoints({moment: partial(counted, number) for moment, number in moments.items()}):
        stopped = stopped_by_signal(partial(work, done))
    assert done[:2] in ([], ["begun", "ended"]), moments
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set(), moments
    assert stopped == (sent.total() > 0), moments
    return sent.total()


def restored() -> bool:
    return [signal.getsignal(number) for number in SIGNALS] == [stop] * 3


def pairs() -> list[tuple[int, int]]:
    """Of the points, all that are near each other, where two signals meet, and a sample of the others."""
    every = list(itertools.combinations(range(1, points() + 1), 2))
    far = [(first, second) for first, second in every if second - first > NEAR]
    return sorted({*every} - {*far} | {*random.Random(SERIES).sample(far, len(far) // 8)})


@pytest.mark.parametrize("send", [signal.raise_signal, handle_at_once])
def test_a_signal_at_any_point_raises_once_and_leaves_the_handlers_of_before(send: Send) -> None:
    for moment, number in itertools.product(range(1, points() + 1), SIGNALS):
        assert at({moment: number}, send) == 1
        assert restored(), (moment, number)


def test_signals_at_any_two_points_leave_the_handlers_of_before() -> None:
    chance, both = random.Random(SERIES), 0
    for moments in pairs():
        signals = {moment: chance.choice(SIGNALS) for moment in moments}
        both += at(signals) == 2
        assert restored(), signals
    assert both > 0


def test_three_signals_leave_the_handlers_of_before() -> None:
    chance, last = random.Random(SERIES), points()
    for _ in range(TRIPLES):
        signals = {chance.randint(1, last): chance.choice(SIGNALS) for _ in range(3)}
        at(signals)
        assert restored(), signals


def test_signals_of_other_threads_leave_at_most_a_handler_that_stands_aside() -> None:
    chance, left = random.Random(SERIES), 0
    for moments in pairs():
        signals = {moment: chance.choice(SIGNALS) for moment in moments}
        at(signals, handle_at_once)
        left += not restored()
        for number in SIGNALS:
            with pytest.raises(Stopped):
                signal.raise_signal(number)
        assert restored(), signals
    assert left > 0, "both within a few instructions"


def test_every_signal_reaches_a_handler_that_does_not_raise() -> None:
    for first, second in pairs():
        heard: list[int] = []
        listeners = {number: lambda number, _, heard=heard: heard.append(number) for number in SIGNALS}
        for number, listener in listeners.items():
            signal.signal(number, listener)
        with at_checkpoints({first: partial(signal.raise_signal, HUP), second: partial(signal.raise_signal, INT)}):
            work([])
        assert sorted(heard) == [HUP, INT], (first, second, heard)
        assert {number: signal.getsignal(number) for number in SIGNALS} == listeners


def test_a_signal_whose_exception_was_caught_does_not_silence_the_next() -> None:
    def goes_on() -> None:
        with Deferral() as signals:
            with pytest.raises(Stopped):
                signal.raise_signal(INT)
            signal.raise_signal(TERM)  # waits: the first may still be on its way
            with signals.critical():
                pytest.fail("a change is not made on the way out")

    def ends() -> None:
        with Deferral():
            with pytest.raises(Stopped):
                signal.raise_signal(INT)
            signal.raise_signal(TERM)

    for work in (goes_on, ends):
        with pytest.raises(Stopped) as raised:
            work()
        assert raised.value.args == (TERM,)
        assert restored()


def test_a_signal_while_a_module_is_imported_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "import signal", "signal.raise_signal(signal.SIGTERM)", "whole = True"
    (tmp_path / "interrupted_import.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)

    def work() -> None:
        with Deferral():
            assert importlib.import_module("interrupted_import").whole

    with pytest.raises(Stopped):
        work()
    assert restored()


def test_one_that_was_left_behind_gives_way_to_the_default_action() -> None:
    """In a process of its own, which the signal ends."""
    code = (
        "import signal; from fathom.experiments.signals import Deferral; left = Deferral(); left.__enter__(); "
        "left._over = True; signal.raise_signal(signal.SIGTERM)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGTERM
