"""What a step of ddp and fsdp does beside a plain one: ops counted by the profiler, events by a stand-in for a GPU's.

Several ranks are one process here, which believes that there are others: the ops of its step are the same.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from fathom.core.heartbeat import Heartbeat, read
from fathom.core.spec import RunSpec
from fathom.engine.ranks.base import Rank, strategy_class
from fathom.engine.ranks.drag import Drag
from fathom.engine.ranks.session import RankSession
from fathom.engine.ranks.strategies.fsdp import unfuse
from fathom.engine.ranks.timeline import Timeline

CPU = torch.device("cpu")
SMALL = 0.05  # megabytes: several buckets, also in a small network


@contextmanager
def ranks_of(count: int, folder: Path, drag: Drag | None = None) -> Iterator[Rank]:
    """Rank 0 of so many, as Fathom sees it; torch knows of one."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    heartbeat = Heartbeat(folder / f"{count}.beat")
    group: Any = SimpleNamespace(rank=0, ranks=count, device=CPU, backend="gloo", largest=lambda value: value)
    try:
        yield Rank(group, Timeline(CPU, heartbeat, count), drag or Drag())
    finally:
        dist.destroy_process_group()


@contextmanager
def session_of(rank: Rank, workload: str, strategy: str, **options: Any) -> Iterator[RankSession]:
    spec = RunSpec(workload=workload, preset="tiny", device="cpu", ranks=rank.group.ranks, strategy=strategy)
    with RankSession(spec, rank, strategy_class(strategy).configured(options)) as session:
        yield session.setup()


def step_of(session: RankSession) -> Callable[[], object]:
    timeline = session.rank.timeline

    def step() -> None:
        timeline.begin_step()
        session.train_step()
        timeline.end_step()

    return step


def plain_step(session: RankSession, strategy: str, bucket_mb: float | None = None) -> Callable[[], object]:
    """As one writes it by hand."""
    workload = session.workload
    model: Any = workload.model().train()
    if strategy == "fsdp":
        for weight in model.parameters():
            weight.data = weight.data.contiguous()
        model = fully_shard(model)
    optimizer = workload.optimizer(model)
    if strategy == "fsdp":
        unfuse(optimizer)
    else:
        model = DistributedDataParallel(
            model, broadcast_buffers=False, gradient_as_bucket_view=True, bucket_cap_mb=bucket_mb
        )
    batches = workload.feed(workload.synthetic(0), CPU, 0)

    def step() -> None:
        optimizer.zero_grad()
        loss = workload.loss(model, workload.augment(next(batches)))
        loss.backward()  # type: ignore[no-untyped-call]
        if workload.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), workload.clip_norm)
        optimizer.step()
        loss.detach()

    return step


def ops_of(step: Callable[[], object]) -> Counter[str]:
    """By name, of the third step: DDP arranges its buckets anew after the first."""
    step()
    step()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    names = (str(event.name) for event in profiler.events() or [])
    return Counter(name for name in names if name.startswith(("aten::", "c10d::", "gloo:", "fsdp::")))


def extra(ours: Counter[str], plain: Counter[str]) -> dict[str, int]:
    """Ops that ours has more of."""
    return {name: count - plain[name] for name, count in ours.items() if count != plain[name]}


@pytest.mark.parametrize(
    ("workload", "strategy"), [("alexnet", "ddp"), ("memnet", "ddp"), ("autoenc", "fsdp"), ("alexnet", "fsdp")]
)
def test_one_rank_does_the_ops_of_a_plain_step_and_no_more(workload: str, strategy: str, tmp_path: Path) -> None:
    with ranks_of(1, tmp_path) as rank, session_of(rank, workload, strategy) as session:
        assert extra(ops_of(step_of(session)), ops_of(plain_step(session, strategy))) == {}
        nothing: tuple[Any, ...] = ([], [], 0)
        assert [(step.communication, step.exposed, step.wire_bytes) for step in rank.timeline.spans()] == [nothing] * 3


def test_several_ranks_divide_each_bucket_once_more_and_no_more(tmp_path: Path) -> None:
    """gloo has no mean: torch's own reducer divides while it copies a gradient, a hook divides the bucket."""
    with ranks_of(4, tmp_path) as rank, session_of(rank, "alexnet", "ddp", bucket_mb=SMALL) as session:
        ours, plain = ops_of(step_of(session)), ops_of(plain_step(session, "ddp", SMALL))
        buckets = len(rank.timeline.spans()[-1].communication)
        assert buckets > 1
        assert ours["c10d::allreduce_"] == plain["c10d::allreduce_"] == buckets
        assert ours["aten::div_"] - plain["aten::div_"] == buckets
        assert sum(ours.values()) <= sum(plain.values()) + 4 * buckets  # with what div_ calls itself


def test_nccl_divides_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operations, plain_sum = [], dist.all_reduce

    def all_reduce(buffer: Any, operation: Any, async_op: bool) -> Any:
        operations.append(operation)
        return plain_sum(buffer, async_op=async_op)

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    with ranks_of(4, tmp_path) as rank, session_of(rank, "alexnet", "ddp", bucket_mb=SMALL) as session:
        rank.group.backend = "nccl"
        assert ops_of(step_of(session))["aten::div_"] == ops_of(plain_step(session, "ddp", SMALL))["aten::div_"]
    assert set(operations) == {dist.ReduceOp.AVG}


def test_the_timed_hook_has_one_continuation_for_a_bucket(tmp_path: Path) -> None:
    """On a GPU each costs a stream and two events."""
    continued: list[str] = []

    def watch(_: object, event: str, called: Any) -> None:
        if event == "c_call" and called.__name__ == "then":
            continued.append(event)

    with ranks_of(2, tmp_path) as rank, session_of(rank, "alexnet", "ddp", bucket_mb=SMALL) as session:
        step = step_of(session)
        step()
        step()
        before = sys.getprofile()
        sys.setprofile(watch)
        try:
            step()
        finally:
            sys.setprofile(before)
        assert len(continued) == len(rank.timeline.spans()[-1].communication) > 1


@pytest.mark.parametrize(("strategy", "workload"), [("ddp", "memnet"), ("fsdp", "memnet"), ("ddp", "alexnet")])
def test_one_rank_also_knows_whether_its_loss_is_a_sum(strategy: str, workload: str, tmp_path: Path) -> None:
    """Else losses of one and of several ranks would be compared as a sum and as a mean."""
    with ranks_of(1, tmp_path) as rank, session_of(rank, workload, strategy) as session:
        step_of(session)()
        assert session.parallel.summed == (workload == "memnet")


def test_accumulation_of_a_summed_loss_gives_one_rank_the_whole_gradient(tmp_path: Path) -> None:
    found = []
    for accumulate in (1, 2):
        with (
            ranks_of(1, tmp_path) as rank,
            session_of(rank, "memnet", "ddp", accumulate=accumulate) as session,
        ):
            batch = next(session.state.batches)
            session.state.model.eval()  # its noise is another in every pass
            session.engine.update(batch)
            found.append(
                torch.cat([weight.grad.flatten() for weight in session.state.weights if weight.grad is not None])
            )
    assert torch.allclose(found[0], found[1], rtol=1e-4, atol=1e-6)


def test_a_slow_single_rank_is_slow_in_its_backward_pass_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    with ranks_of(1, tmp_path, Drag(3.0)) as rank, session_of(rank, "memnet", "ddp") as session:
        step_of(session)()
        slept.clear()
        step_of(session)()
    assert len(slept) == 3  # forward, backward, optimizer


class StandIn:
    """An event of a GPU whose clock is a counter."""

    clock = 0.0
    made = 0

    def __init__(self, device: torch.device, enable_timing: bool) -> None:
        assert enable_timing
        StandIn.made += 1
        self.at: float | None = None

    def record(self) -> None:
        StandIn.clock += 1.0
        self.at = StandIn.clock

    def elapsed_time(self, other: StandIn) -> float:
        assert self.at is not None
        assert other.at is not None
        return other.at - self.at


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Timeline:
    monkeypatch.setattr("torch.Event", StandIn)
    monkeypatch.setattr("torch.accelerator.synchronize", lambda device: None)
    StandIn.clock, StandIn.made = 0.0, 0
    monkeypatch.setattr("time.perf_counter", lambda: StandIn.clock / 1000)
    return Timeline(torch.device("cuda"), Heartbeat(tmp_path / "beat"), ranks=2)


def chunk(timeline: Timeline, steps: int, buckets: int) -> None:
    for _ in range(steps):
        timeline.begin_step()
        for _ in range(buckets):
            begun = timeline.begin("all-reduce", 100)
            timeline.done(begun)
        if buckets:
            timeline.exposed_since(begun)
        timeline.end_step()


@pytest.mark.parametrize(("buckets", "events"), [(0, 2), (3, 9)])
def test_events_of_a_gpu_are_made_between_chunks_and_used_again(gpu: Timeline, buckets: int, events: int) -> None:
    chunk(gpu, 2, buckets)
    assert StandIn.made == 1 + 2 * events  # one is the origin of the clock
    gpu.reserve(10)
    made = StandIn.made
    assert made == 1 + 10 * events
    chunk(gpu, 10, buckets)
    assert StandIn.made == made
    gpu.spans()
    chunk(gpu, 10, buckets)
    gpu.forget()
    chunk(gpu, 10, buckets)
    assert StandIn.made == made


def test_spans_of_a_gpu_stay_as_they_were_when_its_events_are_used_again(gpu: Timeline) -> None:
    chunk(gpu, 3, 2)
    first = gpu.spans(offset_s=5.0)
    chunk(gpu, 3, 2)
    second = gpu.spans(offset_s=5.0)
    assert second[:3] == first
    assert len(second) == 6
    begins = [step.begin_s for step in second]
    assert begins == sorted(set(begins))
    for step in second:
        moments = [step.begin_s, *(moment for span in step.communication for moment in span), step.end_s]
        assert moments == sorted(moments)
        assert step.exposed[0][0] == step.communication[-1][0]
    assert gpu.spans()[0].begin_s == pytest.approx(first[0].begin_s - 5.0)


def test_steps_are_numbered_on_after_their_events_were_read(gpu: Timeline, tmp_path: Path) -> None:
    chunk(gpu, 3, 0)
    gpu.spans()
    chunk(gpu, 1, 0)
    beat = read(tmp_path / "beat")
    assert beat is not None
    assert beat.step == 4
