"""A feed run: compute alone, input alone, both, and compute alone again, in one process and in one way of feeding.

Compute alone repeats one batch that stays on the device, before the first reader is started and after the last has
ended: readers in the background would take cores from it. Input alone and both begin untimed, with as many batches as
can be in flight: a queue that was filled while nobody took from it would flatter a slow reader.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any

from torch import Tensor

from fathom.core.errors import BadOption
from fathom.core.events import OnProgress, throttled
from fathom.core.feeding import Feeding, FeedTimes
from fathom.core.record import Record, Sections
from fathom.core.spec import RunSpec
from fathom.data.base import Batch, feeding
from fathom.engine.session import Session
from fathom.machine.clock import StepClock, wait
from fathom.machine.devices import wake
from fathom.machine.disturbance import Watch
from fathom.machine.link import host_to_device
from fathom.measure.loop import as_record

LEAST_STEPS = 5  # of each pass, whatever the budget
PASSES = 4  # compute, input, both, compute


@dataclass
class Pass:
    """Steps or batches one after another; of fed steps, also how long the device waited for each batch."""

    seconds: list[float]
    wait_s: list[float] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)  # losses, or the last output of inference


def measured(spec: RunSpec, progress: OnProgress, begun: float) -> Record:
    """The record of a feed run; its imports began at `begun`, on the clock of time.perf_counter()."""
    import_s = time.perf_counter() - begun
    with _LateFed(spec) as session:
        if session.workload.interactive:
            raise BadOption(
                f"{session.workload.name} makes its batches by acting in an environment: no reader feeds it"
            )
        wake(session.device)
        setup_begun = time.perf_counter()
        session.setup()
        setup_s = time.perf_counter() - setup_begun
        watch = Watch(session.device)
        passes = _Passes(session, progress)
        before, alone, both, after, first_s = passes.run()
        watch.look()
        sections = Sections(import_s=import_s, setup_s=setup_s, first_step_s=first_s)
        record = as_record(session, sections, [], both.seconds, both.results, [])
        times = FeedTimes(
            used=session.fed,
            input_s=alone.seconds,
            compute_s=before.seconds + after.seconds,
            wait_s=both.wait_s,
            batch_bytes=sum(column.nbytes for column in passes.held.values()),
            transfers=host_to_device(session.device),
        )
        watch.look()
        return replace(record, disturbance=watch.disturbance(), feed=times)


class _LateFed(Session):
    """A session whose readers start with the first batch that is asked for, and not when it is set up."""

    def _batches(self, source: Any) -> Iterator[Batch]:
        yield from super()._batches(source)


class _Passes:
    """The four passes over one session."""

    def __init__(self, session: Session, progress: OnProgress) -> None:
        self.session, self.spec, self.device = session, session.spec, session.device
        self.batches = session.state.batches
        self.held = self._one_batch()
        self._progress, self._done = throttled(progress), 0

    def run(self) -> tuple[Pass, Pass, Pass, Pass, float]:
        """And the time of the first step, which allocates and chooses algorithms."""
        state = self.session.state
        state.batches = repeat(self.held)
        first_s = self._warm_up()
        before = self._compute()
        alone = self._input()
        state.batches = self.batches
        both = self._fed()
        _close(self.batches)
        state.batches = repeat(self.held)
        return before, alone, both, self._compute(), first_s

    def _one_batch(self) -> Batch:
        """The first batch, read in this process: no worker is started for it."""
        session = self.session
        with feeding(Feeding()):
            batches = session.workload.feed(session.state.source, self.device, self.spec.seed or 0)
            return next(batches)

    def _warm_up(self) -> float:
        wait(self.device)
        begun = time.perf_counter()
        self.session.run(1)
        wait(self.device)
        first_s = time.perf_counter() - begun
        self.session.run(self.spec.warmup)
        return first_s

    def _compute(self) -> Pass:
        clock = StepClock(self.device)

        def step() -> None:
            self._step()
            clock.mark()

        self._repeated(clock, step, together=1)
        return Pass(clock.seconds())

    def _input(self) -> Pass:
        clock = StepClock(self.device)

        def take() -> None:
            next(self.batches)
            clock.mark()

        self._drain(lambda: next(self.batches))
        self._repeated(clock, take, together=self._together)
        return Pass(clock.seconds())

    def _fed(self) -> Pass:
        """Two marks a step: when its batch is on the device, and when it has ended."""
        clock = StepClock(self.device)
        results: list[Any] = []
        training = self.spec.phase == "train"

        def step() -> None:
            result = self._step()
            if not training:
                results.clear()  # outputs are large; the last one is enough
            results.append(result)
            clock.mark()

        self._drain(self._step)
        self.session.state.batches = _marked(self.batches, clock.mark)
        self._repeated(clock, step, together=self._together)
        marks = clock.seconds()
        waits, works = marks[::2], marks[1::2]
        losses = [float(loss) for loss in results] if training else results
        return Pass([wait_s + work_s for wait_s, work_s in zip(waits, works, strict=True)], waits, losses)

    @property
    def _together(self) -> int:
        """Workers finish a batch each at about the same time: only a multiple of their number is a fair sample."""
        return max(1, self.session.fed.workers) if self.session.fed else 1

    def _drain(self, take: Callable[[], Any]) -> None:
        take()  # the readers start, and only then is known how batches are fed
        in_flight = self.session.fed.in_flight if self.session.fed else 0
        for _ in range(in_flight + self.spec.warmup):
            take()

    def _repeated(self, clock: StepClock, work: Callable[[], None], together: int) -> None:
        """Until the steps are done or the budget is spent, but at least a few, and whole groups of them."""
        wait(self.device)
        least = max(LEAST_STEPS, 2 * together)
        done, begun = 0, time.perf_counter()
        budget_s = self.spec.budget_s
        clock.begin()
        while done < least or done % together or (done < self.spec.steps and not _spent(begun, budget_s)):
            work()
            done += 1
            self._progress(self._done, PASSES)
        wait(self.device)
        self._done += 1

    def _step(self) -> Tensor | dict[str, Tensor]:
        return self.session.train_step() if self.spec.phase == "train" else self.session.infer_step()


def _spent(begun: float, budget_s: float | None) -> bool:
    return budget_s is not None and time.perf_counter() - begun >= budget_s


def _marked(batches: Iterator[Batch], mark: Callable[[], None]) -> Iterator[Batch]:
    for batch in batches:
        mark()
        yield batch


def _close(batches: Iterator[Batch]) -> None:
    """Ends the readers: torch stops its workers when the last reference to their loader is dropped."""
    close: Callable[[], None] | None = getattr(batches, "close", None)
    if close is not None:
        close()
