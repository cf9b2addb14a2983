"""Engines: steps replayed as CUDA graphs train as eager ones do, and an engine that cannot run says so in one line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import fathom
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

import fathom as suite
from fathom.core import plugins
from fathom.core.errors import BadOption, EngineError, UnknownName
from fathom.core.spec import RunSpec
from fathom.data.base import Batch
from fathom.engine.base import Engine, engine_class
from fathom.engine.engines.cudagraph import WARM_UP, CudaGraph
from fathom.engine.engines.eager import Eager
from fathom.engine.session import Session
from fathom.measure.calibration import whole_steps
from fathom.measure.calibration.networks import deep_network, random_network
from fathom.measure.calibration.op_times import OpTime
from fathom.measure.own.model import OwnModel
from fathom.training.trainer import HeldOut, Trainer, recipe_for, trainer_for
from fathom.workloads.autoenc import Autoenc
from fathom.workloads.base import State

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
OPTIONS: dict[str, dict[str, Any]] = {
    "seq2seq": {"solver": "adam", "learning_rate": 0.004, "warmup": 20, "clip_norm": 1.0, "averaging": 0.9},
    "autoenc": {"adam": True, "learning_rate": 0.003},
}


# which engine, and where


def test_cudagraph_is_refused_without_a_gpu() -> None:
    workload, cpu, gpu = Autoenc.configured("tiny"), torch.device("cpu"), torch.device("cuda:0")
    for phase in ("train", "infer"):
        assert CudaGraph.refusal(workload, cpu, phase) == "needs an NVIDIA GPU, not cpu"
        assert CudaGraph.refusal(workload, gpu, phase) is None
        assert Eager.refusal(workload, cpu, phase) is None
    with pytest.raises(EngineError, match="^engine cudagraph needs an NVIDIA GPU, not cpu$"):
        suite.load("autoenc", preset="tiny", device="cpu", engine="cudagraph")


NEEDS_GPU = "engine cudagraph needs an NVIDIA GPU, not cpu"
NO_ENGINE = "json:loads is no engine: expected a subclass of fathom.engine.base.Engine"


@pytest.mark.parametrize(
    ("command", "engine", "told"),
    [
        ("learn", "cudagraph", NEEDS_GPU),
        ("run", "cudagraph", NEEDS_GPU),  # which a worker says, as the command line does not load torch
        ("learn", "cudagraf", "no engine 'cudagraf'; did you mean cudagraph?"),
        ("run", "cudagraf", "no engine 'cudagraf'; did you mean cudagraph?"),
        ("learn", "json:loads", NO_ENGINE),
    ],
)
def test_an_engine_that_cannot_run_is_one_line_and_exit_code_2(
    command: str,
    engine: str,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    arguments = [command, "autoenc", "--preset", "tiny", "--device", "cpu", "--engine", engine, "--out", str(tmp_path)]
    assert fathom(monkeypatch, *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"fathom: {told}\n"
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_engine_is_told_with_the_nearest_name() -> None:
    assert set(plugins.names("engines")) >= {"eager", "cudagraph"}
    with pytest.raises(UnknownName, match="no engine 'eagre'; did you mean eager"):
        engine_class("eagre")


MINE = """\
from fathom.engine.engines.eager import Eager

class Counting(Eager):
    name = "counting"
    updates = []

    def update(self, batch):
        self.updates.append(sorted(batch))
        return super().update(batch)

class Refusing(Eager):
    name = "refusing"

    @classmethod
    def refusal(cls, workload, device, phase):
        return f"cannot {phase} {workload.name} on {device}"
"""


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A module of somebody's own, with engines in it."""
    (tmp_path / "own_engines.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_engines", raising=False)
    return "own_engines"


def test_an_engine_of_ones_own_executes_the_step(mine: str) -> None:
    with suite.load("autoenc", preset="tiny", device="cpu", engine=f"{mine}:Counting").setup() as session:
        assert type(session.engine).__name__ == "Counting"
        losses = session.run(3)
        assert type(session.engine).updates == [["label", "pixels"]] * 3  # type: ignore[attr-defined]
    with suite.load("autoenc", preset="tiny", device="cpu").setup() as session:
        assert session.run(3) == losses


def test_an_engine_of_ones_own_says_why_it_cannot(mine: str) -> None:
    with pytest.raises(EngineError, match=f"^engine {mine}:Refusing cannot train autoenc on cpu$"):
        suite.load("autoenc", preset="tiny", device="cpu", engine=f"{mine}:Refusing")
    with pytest.raises(BadOption, match=f"{mine} has no Missing"):
        suite.load("autoenc", preset="tiny", device="cpu", engine=f"{mine}:Missing")


# what a graph does, with torch's part played on the CPU


class Replayed:
    """A graph that runs the work again, into the memory of the first time: what CUDA does, but for the launches."""

    def __init__(self, work: Callable[[], Any], weights: list[nn.Parameter], optimizer: Optimizer | None) -> None:
        self._work, self._weights = work, weights
        states = optimizer.state.values() if optimizer is not None else ()
        held = [*weights, *(value for state in states for value in state.values() if torch.is_tensor(value))]
        random, before = torch.get_rng_state(), [value.detach().clone() for value in held]
        self.result = {name: value.clone() for name, value in _named(work()).items()}  # only to know how large it is
        torch.set_rng_state(random)
        with torch.no_grad():
            for value, kept in zip(held, before, strict=True):
                value.copy_(kept)  # a capture runs nothing
        self.gradients = tuple(torch.empty_like(weight) for weight in weights)

    def replay(self) -> None:
        for name, value in _named(self._work()).items():
            self.result[name].copy_(value)
        for weight, gradient in zip(self._weights, self.gradients, strict=True):
            if weight.grad is not None:
                gradient.copy_(weight.grad)
                weight.grad.fill_(torch.nan)  # what is not read from the graph's own memory is not there


def _named(result: torch.Tensor | dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return result if isinstance(result, dict) else {"": result}


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """CUDA graphs without CUDA; gives the shapes that were captured."""
    shapes: list[tuple[int, ...]] = []

    def capture(self: CudaGraph, found: Any, work: Callable[[Batch], Any]) -> None:
        shapes.append(tuple(next(iter(found.inputs.values())).shape))
        found.graph = graph = Replayed(lambda: work(found.inputs), self.state.weights, self.state.optimizer)
        found.result, found.gradients = graph.result.get("", graph.result), graph.gradients

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(CudaGraph, "refusal", classmethod(lambda cls, workload, device, phase: None))
    monkeypatch.setattr(CudaGraph, "_aside", lambda self, work: work())
    monkeypatch.setattr(CudaGraph, "_capture", capture)
    return shapes


def test_each_shape_is_captured_by_itself_after_a_warm_up(captures: list[tuple[int, ...]]) -> None:
    """Every batch is worked on once, as itself, and what was given is not written over."""
    calls: list[int] = []

    def infer(batch: Batch) -> dict[str, torch.Tensor]:
        calls.append(int(batch["source"][0, 0]))
        return {"sum": batch["source"].sum() + 10 * batch["target"].sum()}

    state = State(nn.Linear(1, 1), torch.device("cpu"), None, iter(()), None, torch.no_grad)
    graphs = CudaGraph(state, lambda batch: batch["source"].sum(), infer)
    widths = [3, 4, 3, 3, 4, 3, 4, 3, 4]
    made = [{"source": torch.full((2, n), n), "target": torch.full((2, n), i)} for i, n in enumerate(widths)]
    found = [graphs.infer(batch)["sum"] for batch in made]
    assert [int(each) for each in found] == [2 * n * n + 20 * n * i for i, n in enumerate(widths)]
    # one eager call warms the second shape up, three the first; to capture is no call of CUDA's, but one of ours
    assert captures == [(2, 4), (2, 3)]
    assert calls == [3, 4, 3, 3, 4, 4, 3, 3, 4, 3, 4]


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("captured", [True, False])
def test_replayed_steps_are_the_eager_ones(
    clip_norm: float | None, captured: bool, captures: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sentences of several lengths, each with a graph and gradients of its own, and an optimizer that is captured, in
    its fused form, or that runs eagerly, bit for bit as without graphs."""
    if not captured:
        monkeypatch.setattr("fathom.engine.engines.cudagraph._can_be_captured", lambda optimizer: False)
    losses, weights = [], []
    for engine in ("eager", "cudagraph"):
        spec = RunSpec(
            workload="seq2seq",
            preset="tiny",
            device="cpu",
            kind="training",
            engine=engine,
            options={"hidden": 16, "embedding": 16, "dropout": 0.1, "clip_norm": clip_norm},
        )
        with Session(spec).setup() as session:
            trainer = trainer_for(session, recipe_for(spec), HeldOut(None, None))
            given = [trainer.step() for _ in range(12)]  # read at the end alone: none may be written over
            losses.append([float(loss) for loss in given])
            weights.append([parameter.detach().clone() for parameter in session.state.weights])
    assert losses[0] == (pytest.approx(losses[1], rel=1e-5) if captured else losses[1])
    assert all(map(partial(torch.allclose, rtol=1e-4, atol=1e-6) if captured else torch.equal, *weights))
    assert len(captures) == 2


def trained(
    optimizer: Callable[[list[nn.Parameter]], Optimizer], engine: type[Engine], rates: list[float]
) -> tuple[list[float], Engine]:
    """Losses of a small network, with a learning rate for each step."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    state = State(model, torch.device("cpu"), None, iter(()), optimizer(list(model.parameters())), nullcontext)
    running = engine(state, lambda batch: (model(batch["x"]) - batch["y"]).square().mean(), lambda batch: {})
    assert state.optimizer is not None
    losses = []
    for step, rate in enumerate(rates):
        for group in state.optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)  # as torch's schedules do
            else:
                group["lr"] = rate
        generator = torch.Generator().manual_seed(step)
        batch = {"x": torch.randn(8, 4, generator=generator), "y": torch.randn(8, 1, generator=generator)}
        losses.append(float(running.update(batch)))
    return losses, running


@pytest.mark.parametrize("network", [random_network, deep_network])
@pytest.mark.parametrize("seed", range(6))
def test_a_calibration_times_the_graph_of_any_network_and_not_the_steps_that_make_it(
    network: Callable[..., OwnModel], seed: int, captures: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_gpu(func: Any, args: list[Any], kwargs: Any, device: torch.device) -> OpTime:
        assert len(captures) == 1
        expected = made.infer(made.model().eval(), next(made.feed(made.inputs, device, 0)))
        torch.testing.assert_close(func(*args, **kwargs), expected)
        assert len(captures) == 1
        return OpTime(0.25)

    monkeypatch.setattr(whole_steps, "on_gpu", on_gpu)
    made = network(seed, device="cpu")
    assert whole_steps.graph_s(made, torch.device("cpu")) == 0.25


def test_a_network_that_cannot_be_captured_has_no_time_in_a_graph(
    captures: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def capture(*_: object) -> None:
        raise EngineError("engine cudagraph cannot capture this step")

    monkeypatch.setattr(CudaGraph, "_capture", capture)
    assert whole_steps.graph_s(deep_network(0, device="cpu"), torch.device("cpu")) is None


CONSTANT = [0.1] * 10
CHANGED = [0.1] * 6 + [0.5, 0.5, 0.02, 0.02, 0.02, 0.02]


def test_adagrad_is_captured_whole_for_as_long_as_its_rate_stays(captures: list[tuple[int, ...]]) -> None:
    eager, _ = trained(Adagrad, Eager, CONSTANT)
    losses, engine = trained(Adagrad, CudaGraph, CONSTANT)
    assert losses == pytest.approx(eager, rel=1e-6)
    assert isinstance(engine, CudaGraph)
    assert engine._whole_step
    assert len(captures) == 1


def test_a_rate_that_changes_takes_adagrad_out_of_the_graph(captures: list[tuple[int, ...]]) -> None:
    """The first change captures anew, without the optimizer; the second changes nothing that was captured."""
    eager, _ = trained(Adagrad, Eager, CHANGED)
    assert eager != pytest.approx(trained(Adagrad, Eager, [0.1] * len(CHANGED))[0], rel=1e-3)
    losses, engine = trained(Adagrad, CudaGraph, CHANGED)
    assert losses == pytest.approx(eager, rel=1e-6)
    assert isinstance(engine, CudaGraph)
    assert not engine._whole_step
    assert len(captures) == 2


def test_adagrad_with_a_decay_is_never_captured(captures: list[tuple[int, ...]]) -> None:
    """Its rate is another at every step, and known to the host alone."""
    decaying = partial(Adagrad, lr_decay=0.1)
    losses, engine = trained(decaying, CudaGraph, CONSTANT)
    assert losses == trained(decaying, Eager, CONSTANT)[0]
    assert isinstance(engine, CudaGraph)
    assert not engine._whole_step
    assert len(captures) == 1


@pytest.mark.parametrize("optimizer", [Adam, AdamW, partial(SGD, lr=0.1, momentum=0.9, nesterov=True)])
def test_other_optimizers_are_captured_fused_and_read_their_rate(
    optimizer: Callable[[list[nn.Parameter]], Optimizer], captures: list[tuple[int, ...]]
) -> None:
    losses, engine = trained(optimizer, CudaGraph, CHANGED)
    assert losses == pytest.approx(trained(optimizer, Eager, CHANGED)[0], rel=1e-4)
    assert engine.state.optimizer is not None
    for group in engine.state.optimizer.param_groups:
        assert group["fused"]
        assert group.get("capturable", True)
        assert isinstance(group["lr"], torch.Tensor)
    assert len(captures) == 1


# on a GPU


def stepped(trainer: Trainer) -> torch.Tensor:
    """A step, and the schedule's move after it."""
    loss = trainer.step()
    if trainer.schedule is not None:
        trainer.schedule.step()
    return loss


@needs_cuda
def test_dropout_is_drawn_anew_at_every_replay() -> None:
    device = torch.device("cuda")
    state = State(nn.Linear(1, 1).to(device), device, None, iter(()), None, torch.no_grad)
    engine = CudaGraph(
        state,
        lambda batch: batch["source"].sum(),
        lambda batch: {"kept": nn.functional.dropout(batch["source"], 0.5)},
    )
    found = [engine.infer({"source": torch.ones(1000, device=device)})["kept"] for _ in range(8)]
    assert len({tuple(each.tolist()) for each in found}) == 8


@pytest.mark.parametrize(("name", "apart"), [("seq2seq", 0.01), ("autoenc", 0.03)])
@needs_cuda
def test_graphs_train_as_eager_launches_do(name: str, apart: float) -> None:
    """The optimizer is captured too, and its learning rate changes from step to step."""
    losses = []
    for engine in ("eager", "cudagraph"):
        spec = RunSpec(
            workload=name, preset="tiny", device="cuda", kind="training", engine=engine, options=OPTIONS[name]
        )
        with Session(spec).setup() as session:
            trainer = trainer_for(session, recipe_for(session.spec), HeldOut(None, None))
            losses.append([float(stepped(trainer)) for _ in range(60)])
    assert losses[1] == pytest.approx(losses[0], rel=apart)
    assert losses[1][-1] < 0.98 * losses[1][0]


@needs_cuda
def test_work_that_waits_for_the_host_is_told_in_one_line() -> None:
    device = torch.device("cuda")
    state = State(nn.Linear(1, 1).to(device), device, None, iter(()), None, torch.no_grad)

    def waits(batch: Batch) -> dict[str, torch.Tensor]:
        return {"kept": batch["source"] * batch["source"].sum().item()}

    engine: Engine = CudaGraph(state, lambda batch: batch["source"].sum(), waits)
    batch = {"source": torch.ones(10, device=device)}
    for _ in range(WARM_UP):
        engine.infer(batch)
    here = torch.cuda.current_stream(device)
    with pytest.raises(EngineError, match="^engine cudagraph cannot capture this step: .*$"):
        engine.infer(batch)
    assert torch.cuda.current_stream(device) == here
    first, second = (nn.functional.dropout(torch.ones(1000, device=device)) for _ in range(2))
    assert not torch.equal(first, second), "whatever comes next draws numbers, and other ones every time"
