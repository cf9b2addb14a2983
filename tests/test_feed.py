"""Feeding: the same batches in every way, waits counted exactly by a clock of our own, faults of readers recorded."""

from __future__ import annotations

import gc
import itertools
import os
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import fathom
from test_imagenet import SHADES, plain, write_folders

from fathom.core.errors import BadOption, DataError, FathomError
from fathom.core.feeding import Feeding
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.data import base, imagenet
from fathom.data.base import Batch, Dataset, InMemory, feed, feeding
from fathom.engine.engines.eager import Eager
from fathom.experiments import feed as experiment
from fathom.experiments.isolate import isolated
from fathom.measure import feed as measuring
from fathom.measure.loop import measure

CPU = torch.device("cpu")
WAYS = [Feeding(), *(Feeding(workers=workers, prefetch=depth) for workers in (1, 2, 3) for depth in (1, 2))]


def batches_of(dataset: Dataset, way: Feeding | None, count: int = 7) -> list[Batch]:
    with feeding(way):
        return list(islice(feed(dataset, 4, CPU, seed=5), count))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than this machine has cores
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_batches_are_the_same_whoever_reads_them(tmp_path: Path, way: Feeding) -> None:
    images = imagenet.read(write_folders(tmp_path / "train", SHADES).parent, "train", side=16, classes=3)
    order = islice(base.ShuffledBatches(len(images), 4, seed=5), 7)
    expected = [images.drawn(indices, number) for number, indices in enumerate(order)]
    for found, wanted in zip(batches_of(images, way), expected, strict=True):
        assert all(torch.equal(found[name], wanted[name]) for name in wanted), "also the random crops are the same"


@pytest.mark.parametrize("way", [None, *WAYS[:3]], ids=str)
def test_a_set_in_memory_gives_the_same_batches_from_workers(way: Feeding | None) -> None:
    found = batches_of(InMemory(value=torch.arange(50)), way)
    assert [batch["value"].tolist() for batch in found] == list(islice(base.ShuffledBatches(50, 4, seed=5), 7))


def test_a_way_holds_inside_its_context_alone() -> None:
    memory = InMemory(value=torch.arange(50))
    with feeding(Feeding(workers=2, prefetch=3)) as choice:
        feed(memory, 4, CPU, seed=0)
    assert choice.used == Feeding(workers=2, prefetch=3)
    with feeding(None) as usual:
        feed(memory, 4, CPU, seed=0)
    assert (usual.fed, usual.used) == (True, None), "kept on the device"
    with pytest.raises(BadOption, match="makes or orders its batches itself"), feeding(Feeding()):
        pass


def test_pinned_memory_and_overlap_are_refused_on_a_cpu() -> None:
    for way in (Feeding(pinned=True), Feeding(overlapped=True)):
        with pytest.raises(BadOption, match="are for a CUDA device"):
            batches_of(InMemory(value=torch.arange(8)), way)


@pytest.mark.parametrize(
    "wrong", [{"workers": -1}, {"workers": 2}, {"prefetch": 2}, {"workers": 1.5, "prefetch": 1}, {"workers": 10**6}]
)
def test_ways_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match="must"):
        Feeding(**wrong)


def test_a_spec_carries_its_way_and_old_specs_have_the_same_id() -> None:
    way = Feeding(workers=2, prefetch=4, pinned=True)
    spec = RunSpec(workload="alexnet", kind="feed", feeding=way)
    assert RunSpec.from_json(spec.to_json()) == spec == RunSpec.from_json(spec.non_defaults())
    assert spec.id != RunSpec(workload="alexnet", kind="feed").id
    assert RunSpec(workload="alexnet").id == "87ff6c7ea6b8"
    with pytest.raises(FathomError, match="no setting of feeding 'wrokers'; did you mean workers"):
        RunSpec.from_json({"workload": "alexnet", "feeding": {"wrokers": 1}})
    with pytest.raises(BadOption, match="does not apply to a training run"):
        RunSpec(workload="alexnet", kind="training", feeding=way)


class FakeClock:
    """Time passes only where a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Slow(InMemory):
    """Reading a batch takes three seconds of the fake clock."""

    clock: FakeClock

    def __getitem__(self, indices: Sequence[int]) -> Batch:
        self.clock.now += 3.0
        return super().__getitem__(indices)


@pytest.fixture
def slow_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of three seconds a batch beside a device of one second a step."""
    clock = FakeClock()
    original = Eager.update

    def update(self: Eager, batch: Any) -> Any:
        clock.now += 1.0
        return original(self, batch)

    def synthetic(self: Any, seed: int) -> Slow:
        rows = made(self, seed).columns
        slow = Slow(**rows)
        slow.clock = clock
        return slow

    from fathom.workloads.autoenc import Autoenc

    made = Autoenc.synthetic
    monkeypatch.setattr(Eager, "update", update)
    monkeypatch.setattr(Autoenc, "synthetic", synthetic)
    monkeypatch.setattr(time, "perf_counter", clock)


@pytest.mark.usefixtures("slow_reader")
def test_a_reader_slower_than_the_device_makes_it_wait_by_exactly_that() -> None:
    spec = RunSpec(workload="autoenc", kind="feed", preset="tiny", device="cpu", steps=8, feeding=Feeding())
    record = measure(spec)
    assert record.outcome == "ok", record.reason
    assert record.feed is not None
    assert record.feed.input_s == pytest.approx([3.0] * 8)
    assert record.feed.compute_s == pytest.approx([1.0] * 16)
    assert record.feed.wait_s == pytest.approx([3.0] * 8)
    assert record.step_s == pytest.approx([4.0] * 8)
    assert record.feed.transfers == [], "a CPU has no link"
    assert record.feed.used == Feeding()
    assert Record.from_json(record.to_json()) == record


@pytest.mark.usefixtures("slow_reader")
def test_the_budget_ends_a_pass_and_a_few_steps_are_always_made() -> None:
    spec = RunSpec(
        workload="autoenc", kind="feed", preset="tiny", device="cpu", steps=500, budget_s=21.0, feeding=Feeding()
    )
    record = measure(spec)
    assert record.feed is not None
    assert (len(record.feed.compute_s), len(record.feed.input_s), len(record.step_s)) == (42, 7, 6)
    short = measure(RunSpec(**{**spec.to_json(), "budget_s": 0.001}))
    assert len(short.step_s) == measuring.LEAST_STEPS


class Counted(Dataset):
    """Counts the batches that were asked for, in this process."""

    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return 64

    def __getitem__(self, indices: Sequence[int]) -> Batch:
        self.read += 1
        return {"value": torch.tensor(list(indices))}


def test_batches_in_flight_are_taken_before_anything_is_timed() -> None:
    """A queue that was filled while nobody took from it would make a slow reader look fast."""
    taken = itertools.count()

    class Session:
        spec = RunSpec(workload="autoenc", kind="feed", warmup=2)
        fed = Feeding(workers=3, prefetch=4, pinned=True, overlapped=True)

    passes = object.__new__(measuring._Passes)
    passes.session, passes.spec = Session(), Session.spec  # type: ignore[assignment]
    passes._drain(lambda: next(taken))
    assert next(taken) == 1 + (3 * 4 + 1) + 2
    assert passes._together == 3, "workers deliver in bursts: whole ones are timed"


def test_no_worker_reads_during_compute_alone() -> None:
    session = measuring._LateFed(
        RunSpec(workload="autoenc", kind="feed", preset="tiny", device="cpu", feeding=Feeding(workers=1, prefetch=1))
    )
    with session.setup():
        assert session.fed is None, "the first batch starts the reader, and not setup"
        next(session.state.batches)
        assert session.fed == Feeding(workers=1, prefetch=1)
        measuring._close(session.state.batches)
        with pytest.raises(StopIteration):
            next(session.state.batches)


class Deadly(Counted):
    """Whoever reads its third batch is killed, as by the kernel when memory is short."""

    def __getitem__(self, indices: Sequence[int]) -> Batch:
        if self.read == 2:
            os._exit(9)
        return super().__getitem__(indices)


def test_a_worker_that_dies_is_an_error_and_not_a_hang() -> None:
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        batches_of(Deadly(), Feeding(workers=1, prefetch=1))


@pytest.mark.parametrize("way", [Feeding(), Feeding(workers=2, prefetch=1)], ids=str)
def test_a_corrupt_image_is_one_line_with_its_file(tmp_path: Path, way: Feeding) -> None:
    root = write_folders(tmp_path / "train", {"n01": [plain(30), plain(60)[:300]]}).parent
    images = imagenet.read(root, "train", side=16, classes=1)
    with pytest.raises(DataError, match=r"n01_1\.JPEG: corrupt JPEG"):
        batches_of(images, way)


def test_a_failed_cell_is_recorded_with_its_reason(tmp_path: Path) -> None:
    """As the command runs it: in a process of its own, whose refusal is one line."""
    write_folders(tmp_path / "train", {"n01": [plain(30)[:200]]})
    spec = RunSpec(workload="alexnet", kind="feed", preset="tiny", device="cpu", data=str(tmp_path), feeding=Feeding())
    with pytest.raises(FathomError, match=r"n01_0\.JPEG: corrupt JPEG"):
        isolated(spec)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--data", "{folder}", "--device", "cpu"], "{folder}: no class folders"),
        (["--device", "cuda:7"], "device 'cuda:7' is not on this machine"),
        (["--device", "cudda"], "no device 'cudda'"),
        (["--device", "cpu", "--set", "averaging=2"], "averaging of alexnet must be at least 0 and less than 1"),
    ],
)
def test_what_would_fail_in_every_setting_is_one_line_before_the_first(
    options: list[str],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "a.JPEG").write_bytes(b"")
    given = [option.format(folder=tmp_path / "flat") for option in options]
    assert fathom(monkeypatch, "feed", "alexnet", *given, "--out", str(tmp_path / "out")) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert problem.format(folder=tmp_path / "flat") in line
    assert not (tmp_path / "out").exists()


def test_the_plan_sweeps_one_axis_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "usable_cores", lambda: 8)
    spec = RunSpec(workload="alexnet", kind="feed")
    on_cpu = experiment.plan(spec, [0, 1, 2], [1, 4], list(experiment.COPIES), cuda=False)
    assert [each.feeding for each in on_cpu] == [
        None,
        Feeding(),
        Feeding(workers=1, prefetch=4),
        Feeding(workers=2, prefetch=4),
        Feeding(workers=2, prefetch=1),
    ]
    on_gpu = experiment.plan(spec, [0, 2], [1, 4], list(experiment.COPIES), cuda=True)
    both = {"pinned": True, "overlapped": True}
    assert [each.feeding for each in on_gpu] == [
        None,
        Feeding(**both),
        Feeding(workers=2, prefetch=4, **both),
        Feeding(workers=2, prefetch=1, **both),
        Feeding(workers=2, prefetch=4),
        Feeding(workers=2, prefetch=4, pinned=True),
        Feeding(workers=2, prefetch=4, overlapped=True),
    ]
    assert experiment.default_workers() == [0, 1, 2, 4, 8]
    with pytest.raises(BadOption, match="--workers takes 0 to 64 on 8 cores, not 65"):
        experiment.plan(spec, [65], [1], ["pinned"], cuda=False)
    with pytest.raises(BadOption, match="--prefetch takes numbers from 1 on"):
        experiment.plan(spec, [1], [0], ["pinned"], cuda=False)
    with pytest.raises(BadOption, match="deepq makes its batches by acting"):
        experiment.check_fed("deepq")


class Collecting(InMemory):
    """Has Python's garbage collected while a worker reads, as may happen at any time."""

    def drawn(self, indices: Sequence[int], number: int) -> dict[str, torch.Tensor]:
        gc.collect()
        return super().drawn(indices, number)


class Garbage:
    """Can only be collected, as it holds itself; says which process did it."""

    def __init__(self, said: Path) -> None:
        self.said, self.itself = said, self

    def __del__(self) -> None:
        with self.said.open("a") as file:
            file.write(f"{os.getpid()}\n")


def test_a_worker_frees_nothing_that_its_parent_left(tmp_path: Path) -> None:
    """A tensor on a GPU would end it: a process that was forked cannot reach the GPU."""
    said = tmp_path / "said"
    gc.collect()
    gc.disable()
    try:
        Garbage(said)
        with feeding(Feeding(workers=1, prefetch=1)):
            assert len(list(islice(feed(Collecting(value=torch.arange(8)), 4, torch.device("cpu"), seed=5), 2))) == 2
        assert not said.exists()
    finally:
        gc.enable()
    gc.collect()
    assert said.read_text() == f"{os.getpid()}\n"


@pytest.mark.gpu
@pytest.mark.parametrize("name", experiment.COPIES)
def test_on_a_gpu_every_kind_of_copy_gives_the_same_batches(name: str) -> None:
    pinned, overlapped = experiment.COPIES[name]
    memory, cuda = InMemory(value=torch.arange(50)), torch.device("cuda:0")
    with feeding(Feeding(workers=2, prefetch=2, pinned=pinned, overlapped=overlapped)):
        found = [batch["value"].tolist() for batch in islice(feed(memory, 4, cuda, seed=5), 7)]
    assert found == list(islice(base.ShuffledBatches(50, 4, seed=5), 7))


@pytest.mark.gpu
def test_on_a_gpu_copies_are_timed_over_sizes_from_both_kinds_of_memory() -> None:
    from fathom.machine.link import SIZES, host_to_device

    found = host_to_device(torch.device("cuda:0"))
    assert [(each.pinned, each.bytes) for each in found] == list(itertools.product((True, False), SIZES))
    assert all(min(each.seconds) > 0 for each in found)
