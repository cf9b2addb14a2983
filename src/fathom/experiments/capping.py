"""Power and clock caps: changed, verified and restored by the parent, while its workers only run.

    changes = plan(governors, [300, 400])                   # a dry run: what would change, and what is refused
    with Capped(governors) as capped:
        capped.apply(300)                                   # journal, change, read back
        record = isolated(spec)
    restore_from_journal()                                  # after a crash of the parent

The settings are restored when the `with` block is left by whatever way: its end, an exception, SIGINT, SIGTERM, SIGHUP;
a worker that is killed or hangs is only a failed record. Where the parent itself is killed, its journal is left.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, TypeVar

from fathom.core.errors import BadOption, CappingError, FathomError, NotPermitted, NotRestored, NotSupported, OutOfRange
from fathom.core.stopping import unwinding
from fathom.experiments.journal import RESTORE, Entry, Journal
from fathom.experiments.signals import Deferral
from fathom.machine.governor import Governor

SETTLE_S = 5.0  # for a driver to show what was set
POLL_S = 0.05
Result = TypeVar("Result")


class Clock(Protocol):
    """What is asked of the module time."""

    def monotonic(self) -> float: ...
    def sleep(self, seconds: float, /) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Change:
    """What applying a value to one part would do."""

    scope: str
    name: str
    before: str
    to: str
    refusal: str | None = None  # why it would be refused, as far as that is known without trying
    caveat: str = ""

    def __str__(self) -> str:
        line = f"{self.scope}, {self.name}: {self.before} -> {self.to}"
        return f"{line}: refused: {self.refusal}" if self.refusal else line


def plan(governors: Sequence[Governor], values: Sequence[float]) -> list[Change]:
    """What a sweep would change, value by value. Changes nothing."""
    return [_change(governor, value) for value in values for governor in governors]


def _change(governor: Governor, value: float) -> Change:
    before, to, refusal = "unknown", governor.shown(value), governor.obstacle()
    try:
        before = governor.shown(governor.current())
        to = governor.shown(governor.permitted(value))
    except CappingError as error:
        refusal = str(error).removeprefix(f"{governor.scope}: ")
    return Change(
        scope=governor.scope, name=governor.name, before=before, to=to, refusal=refusal, caveat=governor.caveat
    )


class Capped:
    """A sweep over settings of some parts of the machine, each changed to the same value at a time.

    Use it as a `with` statement of its own: signals that come while that is left wait until all is restored.
    """

    def __init__(self, governors: Sequence[Governor], journal: Journal | None = None, clock: Clock = time) -> None:
        self._governors, self._journal, self._clock = list(governors), journal or Journal(), clock
        self._before: list[float | None] = []
        self._entries: list[Entry] = []  # what the journal holds
        self._changed: set[int] = set()  # the governors that may not be as they were before
        self._signals = Deferral(Capped.__enter__, Capped.__exit__)
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Changes nothing yet; fails where another sweep runs, or has not been restored."""
        with contextlib.ExitStack() as opened:
            opened.enter_context(self._signals)
            opened.enter_context(unwinding())  # the command line's own handler would end the process on the spot
            opened.enter_context(self._journal.locked())
            self._journal.refuse_leftover()
            opened.callback(self._restore)
            self._open = opened.pop_all()
        return self

    def apply(self, value: float) -> list[float]:
        """Sets all parts to a value and waits until the driver shows it; gives what was set, by part.

        A value that is out of range for one part is refused before anything is changed.
        """
        wanted = [governor.permitted(value) for governor in self._governors]
        with self._signals.critical():
            self._before = self._before or [governor.current() for governor in self._governors]
            self._entries = list(map(Entry.of, self._governors, self._before, wanted))
            self._journal.write(self._entries)
            for number, setting in enumerate(wanted):
                self._set(number, setting)
            for governor, setting in zip(self._governors, wanted, strict=True):
                _wait_until_shown(governor, setting, governor.tolerance, self._clock)
        return wanted

    def _set(self, number: int, value: float) -> None:
        untouched = number not in self._changed
        self._changed.add(number)
        try:
            self._governors[number].apply(value)
        except (NotPermitted, NotSupported, OutOfRange):
            if untouched:  # a refusal changes nothing; after a timeout or a lost card nobody knows
                self._changed.remove(number)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def _restore(self) -> None:
        if self._entries:
            changed = [(self._entries[number], self._governors[number]) for number in sorted(self._changed)]
            _restore(changed, [], self._journal, self._clock)


def sweep(
    governors: Sequence[Governor],
    values: Sequence[float],
    run: Callable[[float], Result],
    journal: Journal | None = None,
    clock: Clock = time,
) -> list[Result]:
    """run(value) under each value in turn, and everything as before at the end."""
    found = []
    with Capped(governors, journal, clock) as capped:
        for value in values:
            capped.apply(value)
            found.append(run(value))
    return found


def restore_from_journal(journal: Journal | None = None, clock: Clock = time) -> list[str]:
    """Puts back what a sweep that was killed has left; one line for each part, none where nothing is left.

    It may be interrupted and called again: the journal goes last.
    """
    journal = journal or Journal()
    with journal.locked():
        found, problems = [], []
        for entry in journal.read():
            try:
                found.append((entry, entry.load()))
            except FathomError as error:
                problems.append((entry, str(error)))
        return _restore(found, problems, journal, clock)


def _restore(
    changed: Sequence[tuple[Entry, Governor]], problems: list[tuple[Entry, str]], journal: Journal, clock: Clock
) -> list[str]:
    """Restores all, also where one part fails; the journal keeps those that did, and is removed where none did."""
    lines = []
    for entry, governor in changed:
        try:
            _put_back(governor, entry.before, clock)
            lines.append(f"{entry.scope}: {governor.name} restored to {governor.shown(entry.before)}")
        except FathomError as error:
            problems.append((entry, str(error)))
    if problems:
        with contextlib.suppress(BadOption):  # on a full disk the whole journal stays
            journal.write([entry for entry, _ in problems])
        why = "; ".join(line for _, line in problems)
        raise NotRestored(f"not restored: {why}. Run {RESTORE}; {journal.path} lists what is left")
    journal.remove()
    return lines


def _put_back(governor: Governor, before: float | None, clock: Clock) -> None:
    """Written even where the driver shows the old value already: it may be late in showing the new one."""
    try:
        governor.restore(before)
    except (NotPermitted, NotSupported):
        if governor.readable and governor.holds(before):
            return  # who may not restore it could not change it either
        raise
    _wait_until_shown(governor, before, 0.0, clock)


def _wait_until_shown(governor: Governor, setting: float | None, tolerance: float, clock: Clock) -> None:
    deadline = clock.monotonic() + SETTLE_S
    while not governor.holds(setting, tolerance):
        if clock.monotonic() >= deadline:
            shown = governor.shown(governor.reading())
            line = f"the driver shows {shown}, {SETTLE_S:g} s after it was set to {governor.shown(setting)}"
            raise CappingError(f"{governor.scope}: {line}")
        clock.sleep(POLL_S)
