"""measured(spec, group): the timed steps of one rank, and on rank 0 the record's part on all of them."""

from __future__ import annotations

import math
import resource
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, pairwise
from statistics import harmonic_mean
from typing import Any

import torch

from fathom.core.ranks import Ranks, RankSeries
from fathom.core.record import Record, Sections
from fathom.core.spec import RunSpec
from fathom.engine.ranks.base import Rank, Strategy, strategy_class
from fathom.engine.ranks.checkpoints import Checkpoints
from fathom.engine.ranks.drag import Drag, slowness
from fathom.engine.ranks.group import Clock, Group
from fathom.engine.ranks.session import RankSession
from fathom.engine.ranks.timeline import StepSpans, Timeline
from fathom.machine.gpus import gpu_uuid
from fathom.machine.host import affinity, fingerprint
from fathom.measure.rank_series import parts_of

FIRST_CHUNK = 5  # steps after which the ranks agree for the first time whether the budget is spent
LARGEST_CHUNK = 1000


@dataclass(frozen=True)
class _Measured:
    """What one rank sends to rank 0."""

    spans: list[StepSpans]
    losses: list[float]
    summed: bool
    setup_s: float
    clock: Clock
    where: dict[str, Any] = field(default_factory=dict)


def measured(spec: RunSpec, group: Group, checkpoints: Checkpoints | None = None) -> Record | None:
    """Warm-up and timed steps, together with the other ranks; the record on rank 0, None elsewhere."""
    begun = time.perf_counter()
    assert spec.strategy is not None
    strategy = strategy_class(spec.strategy).configured(spec.strategy_options)
    compute, link = slowness(spec, group)
    timeline = Timeline(group.device, group.heartbeat, group.ranks, link)
    with RankSession(spec, Rank(group, timeline, Drag(compute)), strategy) as session:
        session.setup()
        setup_s = time.perf_counter() - begun
        clock = group.clock()
        steps = _Steps(session, group, timeline, clock, checkpoints if strategy.checkpointed else None)
        steps.run()
        session.parallel.finish()
        own = _Measured(steps.spans(), steps.losses, session.parallel.summed, setup_s, clock, _where(group))
        everyone: list[_Measured] = group.gathered(own)
        return _record(spec, session, group, everyone) if group.rank == 0 else None


class _Steps:
    """All steps of one rank, in chunks; between two of them the ranks agree whether to go on."""

    def __init__(
        self, session: RankSession, group: Group, timeline: Timeline, clock: Clock, checkpoints: Checkpoints | None
    ) -> None:
        self.session, self.group, self.timeline, self.clock = session, group, timeline, clock
        self.checkpoints = checkpoints
        self.losses: list[float] = []
        self._earlier: list[StepSpans] = []  # of the processes before a restart
        self._stop_s = math.inf

    def spans(self) -> list[StepSpans]:
        return [*self._earlier, *self.timeline.spans(self.clock.offset_s)]

    def run(self) -> None:
        spec = self.session.spec
        total, chunk = spec.warmup + spec.steps, FIRST_CHUNK
        self._resume()
        while (done := len(self.losses)) < total:
            warming = spec.budget_s is not None and done < spec.warmup
            steps = (spec.warmup if warming else total) - done
            if spec.budget_s is not None and not warming:
                steps, chunk = min(steps, chunk), 2 * chunk
            if self.checkpoints:
                steps = min(steps, self.checkpoints.every)
            self._chunk(steps)
            if spec.budget_s is not None and len(self.losses) > spec.warmup:
                chunk = self._affordable(chunk)
                if chunk == 0:
                    break

    def _chunk(self, steps: int) -> None:
        self.timeline.reserve(steps)
        self.group.barrier()
        self.losses += [float(loss) for loss in self.session.run(steps, on_step=self._timed)]  # type: ignore[arg-type]
        spec = self.session.spec
        if spec.budget_s is not None and self._stop_s == math.inf and len(self.losses) >= spec.warmup:
            self._stop_s = time.perf_counter() + spec.budget_s
        if self.checkpoints:
            state = self.session.state
            assert state.optimizer is not None
            weights = {"model": state.model.state_dict(), "optimizer": state.optimizer.state_dict()}
            series = {"losses": self.losses, "spans": self.spans()}
            self.checkpoints.save(len(self.losses), {**weights, **series})

    def _timed(self, step: Any) -> None:
        self.timeline.begin_step()
        step.run()
        self.timeline.end_step()

    def _affordable(self, chunk: int) -> int:
        """The next chunk: as many steps as the budget lasts by the slowest rank's last one; 0 where it is spent."""
        left_s = -self.group.largest(time.perf_counter() - self._stop_s)
        if left_s <= 0:
            return 0
        last = self.spans()[-1]
        slowest_s = self.group.largest(last.end_s - last.begin_s)
        return max(1, min(LARGEST_CHUNK, chunk, int(left_s / slowest_s) if slowest_s else chunk))

    def _resume(self) -> None:
        """From the last checkpoint, where torchrun has started the ranks again."""
        kept = self.checkpoints.load() if self.checkpoints else None
        if kept is None:
            return
        session, state = self.session, self.session.state
        assert state.optimizer is not None
        state.model.load_state_dict(kept["model"])
        state.optimizer.load_state_dict(kept["optimizer"])
        self.losses, self._earlier = kept["losses"], kept["spans"]
        self.timeline.first = len(self.losses)
        session.parallel.resume(len(self.losses) * session.workload.updates_per_step)
        if not session.workload.interactive:  # an environment goes on by itself
            start = len(self.losses) * session.workload.updates_per_step
            state.batches = session.workload.feed(state.source, state.device, session.spec.seed or 0, start)


def _where(group: Group) -> dict[str, Any]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "rank": group.rank,
        "host": socket.gethostname(),
        "device": str(group.device),
        "cores": affinity(),
        "threads": torch.get_num_threads(),
        "peak_host_bytes": peak if sys.platform == "darwin" else peak * 1024,
        "peak_device_bytes": torch.cuda.max_memory_allocated(group.device) if group.device.type == "cuda" else None,
    }


def _record(spec: RunSpec, session: RankSession, group: Group, everyone: Sequence[_Measured]) -> Record:
    warm, series = spec.warmup, _series(spec, everyone, session.strategy)
    summed, together = everyone[0].summed, session.strategy.divides == "network"
    over = _last if together else sum if summed else _mean
    losses = [float(over(values)) for values in zip(*(each.losses for each in everyone), strict=True)]
    step_s = _steps_of_all(everyone, warm, session.strategy.synchronous)
    first = next((index for index, loss in enumerate(losses) if not math.isfinite(loss)), None)
    errors = [each.clock.error_s for each in everyone if each.clock.error_s is not None]
    return Record(
        spec=spec,
        machine=fingerprint(group.device),
        device=group.device.type if group.device.type == "cpu" else f"{group.device.type}:0",
        gpu_uuid=gpu_uuid(group.device),
        outcome="ok" if first is None else "failed",
        reason=None if first is None else f"the loss is {losses[first]} at step {first}",
        sections=Sections(setup_s=max(each.setup_s for each in everyone), run_s=sum(step_s), first_step_s=step_s[0]),
        warmup_s=step_s[:warm],
        step_s=step_s[warm:],
        losses=losses,
        item=session.workload.item_of(spec.phase),
        items_per_step=session.items_per_step * (1 if together else group.ranks),
        parameters=session.parallel.parameters,
        ranks=Ranks(
            backend=group.backend,
            ranks=group.ranks,
            nodes=group.nodes,
            clock_error_s=max(errors, default=None),
            settings=_settings(session),
            series=series,
        ),
        notes=_notes(session, series, summed),
    )


def _steps_of_all(everyone: Sequence[_Measured], warm: int, synchronous: bool) -> list[float]:
    """The slowest rank's, as the others wait for it; of asynchronous ranks the rates add up, over all steps so far."""
    each_s = [[step.end_s - step.begin_s for step in each.spans] for each in everyone]
    if synchronous:
        return [max(same) for same in zip(*each_s, strict=True)]
    ends = [
        [0.0, *map(harmonic_mean, zip(*(accumulate(own[part]) for own in each_s), strict=True))]
        for part in (slice(warm), slice(warm, None))
    ]
    return [end - begin for part in ends for begin, end in pairwise(part)]


def _series(spec: RunSpec, everyone: Sequence[_Measured], strategy: Strategy) -> list[RankSeries]:
    found = []
    one_batch = strategy.divides == "network"  # whose loss the last rank has
    for each, parts in zip(everyone, parts_of([each.spans for each in everyone], strategy.synchronous), strict=True):
        timed = parts[spec.warmup :]
        found.append(
            RankSeries(
                **each.where,
                step_s=[step.step_s for step in timed],
                compute_s=[step.compute_s for step in timed],
                exposed_s=[step.exposed_s for step in timed],
                wait_s=[step.wait_s for step in timed],
                hidden_s=[step.hidden_s for step in timed],
                wire_bytes=[step.wire_bytes for step in timed],
                losses=everyone[-1].losses if one_batch else each.losses,
            )
        )
    return found


def _settings(session: RankSession) -> dict[str, Any]:
    return {
        **asdict(session.strategy),
        "batch_per_rank": session.workload.batch,
        "loss_is_summed": session.parallel.summed,
    }


def _notes(session: RankSession, series: Sequence[RankSeries], summed: bool) -> list[str]:
    of_ranks = f"is the {'sum' if summed else 'mean'} of the ranks' losses"
    together = session.strategy.divides == "network"
    notes = [f"the loss of a step {'is that of the one batch that all ranks work on' if together else of_ranks}"]
    if not session.strategy.synchronous:
        notes.append("asynchronous: a step of the job is the harmonic mean of the ranks' steps, as their rates add up")
    bound = [core for each in series for core in each.cores or []]
    if len(set(bound)) < len(bound) and len({each.host for each in series}) == 1:
        notes.append("ranks shared cores: there were fewer cores than ranks times threads")
    return [*notes, *session.parallel.notes, *session.data_notes]


def _last(values: Sequence[float]) -> float:
    return values[-1]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
