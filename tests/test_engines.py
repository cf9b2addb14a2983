"""Engines: how they combine, where each is refused, and that each computes what eager does, on a CPU."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

import fathom as suite
from fathom.core import plugins
from fathom.core.errors import BadOption, EngineError, UnknownName
from fathom.core.spec import RunSpec
from fathom.data.base import Batch
from fathom.engine.base import Engine, engine_class
from fathom.engine.engines.channels_last import ChannelsLast
from fathom.engine.engines.compile import Compile
from fathom.engine.engines.cudagraph import CudaGraph
from fathom.engine.engines.fused import Fused
from fathom.experiments.engines import plan
from fathom.workloads.autoenc import Autoenc
from fathom.workloads.base import Output, State, workload_class

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
RELATIVE = 1e-4  # of a loss or an output, over a few steps in fp32


# combinations


def test_order_and_hyphens_do_not_matter_for_the_id() -> None:
    spec = RunSpec(workload="autoenc", engine="compile+channels_last")
    assert spec.engine == "channels_last+compile"
    for same in ("channels_last+compile", "channels-last+compile", "compile+channels-last+compile"):
        assert RunSpec(workload="autoenc", engine=same).id == spec.id
    assert RunSpec(workload="autoenc", engine="my-pkg.mod:A-B").engine == "my-pkg.mod:A-B"
    assert RunSpec(workload="autoenc").id == RunSpec(workload="autoenc", engine="eager").id


def test_a_plan_has_each_engine_once() -> None:
    base = RunSpec(workload="", kind="trial")
    specs = plan(base, ["autoenc"], ["train", "infer"], ["compile", "fused+compile", "compile+fused", "compile"])
    assert [(spec.phase, spec.engine) for spec in specs] == [
        (phase, engine) for phase in ("train", "infer") for engine in ("compile", "compile+fused")
    ]


@pytest.mark.parametrize("name", ["cudagraph+compile+channels_last+fused", "channels_last+compile+cudagraph+fused"])
def test_a_graph_is_outermost_and_the_network_innermost(name: str) -> None:
    """So that a graph captures what was compiled, of a network in its final memory format."""
    order = engine_class(name).__mro__
    assert order.index(CudaGraph) < order.index(Compile) < min(order.index(ChannelsLast), order.index(Fused))
    assert order[-2:] == (Engine, object)
    assert engine_class(name).name == name


@pytest.mark.parametrize(
    ("name", "error", "told"),
    [
        ("compile+cudagraf", UnknownName, "no engine 'cudagraf'; did you mean cudagraph?"),
        ("compile+", UnknownName, f"no engine ''; there are: {', '.join(plugins.names('engines'))}"),
        ("compile+eager", BadOption, "engine eager does not combine with others"),
    ],
)
def test_what_does_not_combine_is_told(name: str, error: type[Exception], told: str) -> None:
    with pytest.raises(error) as raised:
        engine_class(name)
    assert str(raised.value) == told


OWN = """\
from fathom.engine.base import Engine
from fathom.engine.engines.compile import Compile
from fathom.engine.engines.eager import Eager

class Other(Compile):
    name = "other"

class Single(Eager):
    pass
"""


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "combined_engines.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "combined_engines", raising=False)


@pytest.mark.usefixtures("own")
def test_an_engine_that_extends_another_combines_with_it() -> None:
    """The extended one is in there already, whichever is named first."""
    for name in ("compile+combined_engines:Other", "combined_engines:Other+compile"):
        found = engine_class(name)
        assert [each.__name__ for each in found.__mro__[:3]] == [name, "Other", "Compile"]
    with pytest.raises(BadOption, match=r"^engine combined_engines:Single does not combine with others$"):
        engine_class("combined_engines:Single+compile")


# refusals


@pytest.mark.parametrize(
    ("workload", "engine", "phase", "told"),
    [
        ("autoenc", "cudagraph", "train", "needs an NVIDIA GPU, not cpu"),
        ("autoenc", "channels_last", "train", "changes nothing: autoenc has no convolution over images"),
        ("residual", "channels_last", "infer", "changes nothing: residual is in this memory format by itself"),
        ("memnet", "fused", "infer", "changes the optimizer, and inference has none"),
        ("autoenc", "fused", "train", None),
        ("memnet", "fused", "train", None),
        ("memnet", "eager", "infer", None),
        ("autoenc", "cudagraph+fused", "train", "needs an NVIDIA GPU, not cpu"),  # of several, the outermost's
        ("autoenc", "compile+fused", "infer", "changes the optimizer, and inference has none"),
    ],
)
def test_refusals(workload: str, engine: str, phase: str, told: str | None) -> None:
    made = workload_class(workload).configured("tiny")
    assert engine_class(engine).refusal(made, CPU, phase) == told
    if told is not None:
        with pytest.raises(EngineError) as raised:
            suite.load(workload, preset="tiny", device="cpu", engine=engine, phase=phase)
        assert str(raised.value) == f"engine {engine} {told}"


def test_adagrad_is_fused_on_a_cpu_alone() -> None:
    told = "changes nothing: torch has no fused Adagrad for cuda"
    assert Fused.refusal(Autoenc.configured("tiny"), GPU, "train") == told
    losses = []
    for engine in ("eager", "fused"):
        with suite.load("autoenc", preset="tiny", device="cpu", engine=engine).setup() as session:
            losses.append(session.run(6))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_workload_that_is_fused_by_itself_has_nothing_to_gain() -> None:
    told = "changes nothing: autoenc has a fused Adam by itself"
    assert Fused.refusal(Autoenc.configured("tiny", adam=True), CPU, "train") == told


def test_compile_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Autoenc.configured("tiny")
    monkeypatch.setattr("fathom.engine.engines.compile.find_spec", lambda name: None)
    assert Compile.refusal(workload, GPU, "train") == "needs triton, which this build of torch did not bring"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert Compile.refusal(workload, CPU, "train") == "needs a C++ compiler such as g++ on the PATH"
    monkeypatch.setattr(shutil, "which", lambda name: name if name == "clang++" else None)
    assert Compile.refusal(workload, CPU, "train") is None


class ReadsItsWeights(nn.Conv2d):
    """As layers do that scale themselves by what they were initialised with: without memory nothing can be read."""

    def __init__(self) -> None:
        super().__init__(3, 8, 3)
        self.scale = float(self.weight.detach().abs().max())


class Reading(Autoenc):
    name: ClassVar = "reading"

    def model(self) -> Any:
        return ReadsItsWeights()

    def optimizer(self, model: nn.Module) -> Optimizer:
        return Adam(model.parameters())


def test_a_network_that_reads_its_own_weights_is_looked_at_too() -> None:
    workload = Reading.configured("tiny")
    assert ChannelsLast.refusal(workload, CPU, "train") is None
    assert Fused.refusal(workload, CPU, "train") is None


# as eager computes


def results(workload: str, engine: str, phase: str, steps: int, **options: Any) -> list[float]:
    """The losses of some steps, or all values of the last output."""
    with suite.load(workload, preset="tiny", device="cpu", engine=engine, phase=phase, **options).setup() as session:
        found = session.run(steps)
        if phase == "train":
            return [float(loss) for loss in found]  # type: ignore[arg-type]
        last: Output = found[-1]  # type: ignore[assignment]
        return [float(value) for name in sorted(last) for value in last[name].double().flatten()]


@pytest.mark.parametrize(
    ("workload", "engine", "phase", "options"),
    [
        ("memnet", "fused", "train", {}),
        ("speech", "fused", "train", {}),  # momentum, Nesterov's
        ("residual", "channels_last", "train", {"channels_last": False}),
        ("residual", "channels_last", "infer", {"channels_last": False}),
    ],
)
def test_it_computes_what_eager_does(workload: str, engine: str, phase: str, options: dict[str, Any]) -> None:
    steps = 2 if workload == "residual" else 4  # it amplifies rounding a hundredfold at each further step
    eager = results(workload, "eager", phase, steps, **options)
    assert results(workload, engine, phase, steps, **options) == pytest.approx(eager, rel=RELATIVE, abs=RELATIVE)
    assert phase == "infer" or len(set(eager)) == steps


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("phase", ["train", "infer"])
def test_compiled_steps_compute_what_eager_ones_do(phase: str) -> None:
    """With the random numbers of eager: autoenc samples its latent."""
    eager = results("autoenc", "eager", phase, 3)
    assert results("autoenc", "compile", phase, 3) == pytest.approx(eager, rel=RELATIVE, abs=RELATIVE)


def test_fused_and_channels_last_change_what_they_say() -> None:
    with suite.load("memnet", preset="tiny", device="cpu", engine="fused").setup() as session:
        assert session.state.optimizer is not None
        assert all(group["fused"] for group in session.state.optimizer.param_groups)
    spec = {"preset": "tiny", "device": "cpu", "engine": "channels_last", "channels_last": False}
    with suite.load("residual", **spec).setup() as session:
        filters = [weight for weight in session.state.model.parameters() if weight.dim() == 4]
        assert filters
        assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in filters)


# a compiler that fails


@pytest.fixture
def state() -> State:
    return State(nn.Linear(1, 1), CPU, None, iter(()), None, nullcontext)


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile that leaves everything as it is."""
    monkeypatch.setattr(torch, "compile", lambda work, **how: work)


class FailsBackward(torch.autograd.Function):
    """What the compiler makes of a forward pass: its backward is compiled when it first runs."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        raise failure("no lowering for aten::odd\nand ten more lines")


def failure(text: str) -> Exception:
    from torch._dynamo.exc import InternalTorchDynamoError

    return InternalTorchDynamoError(text)


def fails(batch: Batch) -> Any:
    raise failure("data-dependent branch\nand ten more lines")


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(
    ("work", "told"),
    [
        (lambda engine: engine.infer({}), "data-dependent branch"),
        (lambda engine: engine.gradients({}), "no lowering for aten::odd"),
    ],
)
def test_what_fails_in_the_compiler_is_one_line(state: State, work: Callable[[Engine], object], told: str) -> None:
    weight = state.weights[0]
    engine = Compile(state, lambda batch: FailsBackward.apply(weight).sum(), fails)  # type: ignore[no-untyped-call]
    with pytest.raises(EngineError) as raised:
        work(engine)
    assert str(raised.value) == f"engine compile cannot compile this step: {told}"


@pytest.mark.usefixtures("uncompiled")
def test_what_fails_in_the_work_itself_stays_as_it_is(state: State) -> None:
    def divides(batch: Batch) -> Output:
        raise ZeroDivisionError("of the model's own")

    engine = Compile(state, lambda batch: torch.zeros(()), divides)
    with pytest.raises(ZeroDivisionError, match="of the model's own"):
        engine.infer({})
