"""Engines onnxruntime and openvino: outputs equal eager's, and what cannot be exported is one line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import fathom
from torch import Tensor, nn
from torch.nn import functional as F

from fathom.core.errors import BadOption, EngineError
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.data._vocabulary import EOS, PAD
from fathom.data.base import Batch
from fathom.engine import export as exporting
from fathom.engine.base import engine_class
from fathom.engine.engines import _exported
from fathom.engine.engines.onnxruntime import OnnxRuntime, session_of
from fathom.engine.engines.openvino import OpenVino, compiled
from fathom.engine.export import Graph, NotExportable, export
from fathom.engine.session import Session, load
from fathom.measure.loop import measure
from fathom.workloads._translator import Translator, greedy
from fathom.workloads.autoenc import Autoenc
from fathom.workloads.base import Output

WORKLOADS = ("alexnet", "autoenc", "deepq", "memnet", "residual", "seq2seq", "speech")  # vgg has alexnet's layers
TOLERANCE = 1e-4  # of floats, relative to the largest value of an output; whole numbers are equal
STEPS = 3
CPU = torch.device("cpu")
# than tiny: what is exported once more for every block and every word takes a minute, and shows nothing more
SMALLER: dict[str, dict[str, int]] = {
    "residual": {"shorten": 4},
    "seq2seq": {"source_length": 4, "target_length": 4},
}


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [package for package in packages if find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


ENGINES = [
    pytest.param(engine, marks=needs(engine, *_exported.EXPORTERS), id=engine) for engine in ("onnxruntime", "openvino")
]
needs_exporters = needs(*_exported.EXPORTERS)


@pytest.fixture(scope="module")
def graphs() -> Iterator[dict[Any, Graph]]:
    """Each graph is exported once for both engines: it takes seconds, and one seed gives one network."""
    known: dict[Any, Graph] = {}

    def once(model: nn.Module, infer: Any, batch: Batch) -> Graph:
        workload = infer.func.__self__  # with its options
        key = repr(workload), tuple((name, column.shape) for name, column in batch.items())
        if key not in known:
            known[key] = export(model, infer, batch)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_exported, "export", once)
        yield known


def outputs(name: str, engine: str, **options: Any) -> tuple[list[Output], Tensor]:
    """What some steps of inference gave, all kept, and where torch's random numbers stand after them."""
    with load(name, preset="tiny", phase="infer", device="cpu", seed=1, engine=engine, **options).setup() as session:
        found = [session.infer_step() for _ in range(STEPS)]
        return found, torch.get_rng_state()


def assert_agree(found: list[Output], expected: list[Output]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        for name, value in one.items():
            assert (value.dtype, value.shape) == (other[name].dtype, other[name].shape)
            if value.is_floating_point():
                assert (value - other[name]).abs().max() <= TOLERANCE * other[name].abs().max(), name
            else:
                assert torch.equal(value, other[name]), name


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", WORKLOADS)
def test_outputs_and_random_numbers_are_those_of_eager(name: str, engine: str, graphs: dict[Any, Graph]) -> None:
    if name == "deepq":
        pytest.importorskip("ale_py")
    smaller = SMALLER.get(name, {})
    (expected, state), (found, other_state) = outputs(name, "eager", **smaller), outputs(name, engine, **smaller)
    assert_agree(found, expected)
    assert torch.equal(state, other_state)


@pytest.mark.parametrize("engine", ENGINES)
def test_beam_search_is_exported_as_well(engine: str, graphs: dict[Any, Graph]) -> None:
    options = {"beam": 2, "target_length": 3}
    assert_agree(outputs("seq2seq", engine, **options)[0], outputs("seq2seq", "eager", **options)[0])


@pytest.mark.parametrize("engine", ENGINES)
def test_each_shape_of_batch_has_a_graph_of_its_own(engine: str, graphs: dict[Any, Graph]) -> None:
    with load("memnet", preset="tiny", phase="infer", device="cpu", seed=1, engine=engine).setup() as session:
        batch = next(session.state.batches)
        half = {name: column[::2] for name, column in batch.items()}  # which is not contiguous, besides
        for each in (batch, half, batch):
            assert_agree([session.engine.infer(each)], [session.engine.output(each)])
        assert len(session.engine._runs) == 2  # type: ignore[attr-defined]


# what the runtimes are told


@pytest.fixture(scope="module")
def small() -> tuple[RunSpec, Graph]:
    """A graph and the run that it is of, which asks for one thread."""
    spec = RunSpec(workload="memnet", preset="tiny", phase="infer", device="cpu", threads=1)
    with Session(spec).setup() as session:
        return spec, export(session.state.model, session.engine._infer, next(session.state.batches))


@needs("onnxruntime", *_exported.EXPORTERS)
def test_onnxruntime_has_torchs_threads_and_no_input_that_inference_does_not_read(small: tuple[RunSpec, Graph]) -> None:
    spec, graph = small
    with Session(spec).setup():
        found = session_of(graph)
    assert set(graph.columns) == {"story", "question"}  # and not the answer
    assert tuple(value.name for value in found.get_inputs()) == graph.inputs
    assert found.get_session_options().intra_op_num_threads == 1
    assert found.get_providers() == ["CPUExecutionProvider"]


@needs("openvino", *_exported.EXPORTERS)
def test_openvino_computes_in_fp32_with_torchs_threads(small: tuple[RunSpec, Graph]) -> None:
    spec, graph = small
    with Session(spec).setup():
        found = compiled(graph)
    assert str(found.get_property("INFERENCE_PRECISION_HINT")) == "<Type: 'float32'>"
    assert found.get_property("INFERENCE_NUM_THREADS") == 1
    assert len(found.inputs) == 2


# the loops of two workloads, as operators of a graph


def exported(infer: Callable[[Batch], Output], model: nn.Module, batch: Batch) -> Callable[[], Output]:
    """What torch.export's graph gives, without ONNX; it has the weights of the model, also when they change."""
    names: list[str] = []

    def noted(batch: Batch) -> Output:
        output = infer(batch)
        names[:] = output
        return output

    with torch.no_grad(), exporting._quiet():
        inference = exporting._Inference(model, noted, tuple(batch))
        program = torch.export.export(inference, tuple(batch.values()), strict=False)
    module = program.module()

    def run() -> Output:
        with torch.no_grad():
            return dict(zip(names, module(*batch.values()), strict=True))

    return run


def test_the_recurrence_of_speech_is_one_operator_and_gives_the_same() -> None:
    with load("speech", preset="tiny", phase="infer", device="cpu", seed=1, frames=9).setup() as session:
        batch, infer = next(session.state.batches), session.engine._infer
        scores = {"scores": session.workload.forward(session.state.model, batch).detach()}

        def forward(batch: Batch) -> Output:
            return {"scores": session.workload.forward(session.state.model, batch)}

        assert_agree([exported(forward, session.state.model, batch)()], [scores])
        assert_agree([exported(infer, session.state.model, batch)()], [session.engine.output(batch)])


ENDS = {-1000.0: [20] * 6, 2.0: [5, 4, 1, 1, 1, 1], 1000.0: [1] * 6}  # never, somewhere, at once


def test_greedy_decoding_ends_where_eager_ends() -> None:
    """One graph, given weights by which sentences end at different lengths."""
    torch.manual_seed(2)
    model = Translator((12, 8), 8, 8, 2, 0.0).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(20)  # else every sentence is the same word again and again
    batch, plain = {"source": torch.randint(3, 12, (6, 5))}, model.projection.bias.detach().clone()

    def infer(batch: Batch) -> Output:
        return greedy(model, batch["source"], 20)

    graph = exported(infer, model, batch)
    for end, tokens in ENDS.items():
        with torch.no_grad():
            model.projection.bias.copy_(plain)
            model.projection.bias[EOS] += end
            expected = infer(batch)
        assert (expected["tokens"] != PAD).sum(1).tolist() == tokens
        assert_agree([graph()], [expected])


# refusals


@pytest.mark.parametrize("engine", [OnnxRuntime, OpenVino])
def test_refusals_are_one_line(engine: type[_exported.Exported], monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Autoenc.configured("tiny")
    assert engine.refusal(workload, CPU, "train") == "is for inference: it cannot train"
    assert engine.refusal(workload, torch.device("cuda:0"), "infer") == "runs on the CPU alone, not on cuda:0"
    monkeypatch.setattr(_exported, "find_spec", lambda name: None)
    told = f"needs {engine.name} and onnx and onnxscript: pip install 'fathom[{engine.name}]'"
    assert engine.refusal(workload, CPU, "infer") == told
    monkeypatch.setattr(_exported, "find_spec", lambda name: name)
    assert engine.refusal(workload, CPU, "infer") is None
    with pytest.raises(BadOption, match=f"^engine {engine.name} does not combine with others$"):
        engine_class(f"{engine.name}+fused")


@pytest.mark.parametrize("engine", ENGINES)
def test_other_precisions_are_refused(engine: str) -> None:
    spec = RunSpec(workload="autoenc", phase="infer", preset="tiny", device="cpu", precision="bf16", engine=engine)
    with pytest.raises(EngineError, match=f"^engine {engine} runs in fp32: leave --precision out$"):
        Session(spec).setup()


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x
        return -x


class Counting(nn.Module):
    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        return x + self.steps


class Drawing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.multinomial(x.softmax(1), 1)


class Decomposing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        values: Tensor = torch.linalg.eigvals(x)
        return values.real


class Failing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("the first line\nand more")


@needs_exporters
@pytest.mark.parametrize(
    ("model", "told"),
    [
        (Branching(), r"data-dependent control flow at test_exported_engines.py:\d+: if x.sum\(\) > 0:"),
        (Counting(), "it changes model.steps, and a graph keeps nothing"),
        (Drawing(), "the random numbers of aten.multinomial have no ONNX equivalent"),
        (Decomposing(), "ONNX has no operator for aten.linalg_eig"),
        (Failing(), "the first line"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_exported_is_one_line_on_a_quiet_terminal(
    model: nn.Module, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NotExportable, match=f"^cannot export this inference(?: to ONNX)?: {told}$"):
        export(model, lambda batch: {"y": model(batch["x"])}, {"x": torch.rand(3, 3)})
    assert capfd.readouterr() == ("", "")
    assert logging.root.manager.disable == logging.NOTSET


@needs_exporters
def test_an_export_prints_nothing_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model = nn.LSTM(4, 4, batch_first=True).eval()  # torch.export warns about its flat weights
    graph = export(model, lambda batch: {"y": model(batch["x"])[0]}, {"x": torch.rand(2, 3, 4)})
    assert graph.onnx
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


class Attending(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        attended = F.scaled_dot_product_attention(x, x, x)
        return F.dropout(attended, 0.5, self.training) + torch.rand_like(x) * torch.rand(x.shape[-1:])


class Mean(nn.Module):
    """Draws, as a variational autoencoder does, what its output does not read."""

    def forward(self, x: Tensor) -> Tensor:
        torch.randn(2, 4)
        return 2 * x + torch.rand(4)


@needs("onnxruntime", *_exported.EXPORTERS)
def test_a_draw_that_nothing_reads_is_made_and_is_no_input() -> None:
    model, batch = Mean().eval(), {"x": torch.randn(2, 4)}
    graph = export(model, lambda batch: {"y": model(batch["x"])}, batch)
    assert [read for _, read in graph.noise] == [False, True]
    torch.manual_seed(5)
    expected = model(batch["x"])
    torch.manual_seed(5)
    feeds = {name: tensor.numpy() for name, tensor in zip(graph.inputs, graph.feeds(batch), strict=True)}
    torch.testing.assert_close(torch.from_numpy(session_of(graph).run(None, feeds)[0]), expected)


@needs("onnxruntime", *_exported.EXPORTERS)
def test_only_what_is_random_in_inference_becomes_an_input() -> None:
    model, batch = Attending().eval(), {"x": torch.randn(2, 1, 3, 4)}
    graph = export(model, lambda batch: {"y": model(batch["x"])}, batch)
    assert [(noise.shape, read) for noise, read in graph.noise] == [((2, 1, 3, 4), True), ((4,), True)]
    torch.manual_seed(5)
    expected = model(batch["x"])
    torch.manual_seed(5)
    feeds = {name: tensor.numpy() for name, tensor in zip(graph.inputs, graph.feeds(batch), strict=True)}
    torch.testing.assert_close(torch.from_numpy(session_of(graph).run(None, feeds)[0]), expected)


@needs_exporters
def test_a_model_that_is_too_large_for_one_message_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "LARGEST", 100)
    model = nn.Linear(8, 8)
    with pytest.raises(NotExportable, match="0.0 GB, and a model holds 2 GB at most$"):
        export(model, lambda batch: {"y": model(batch["x"])}, {"x": torch.rand(2, 8)})


@pytest.mark.parametrize("engine", ENGINES)
def test_a_graph_that_the_runtime_cannot_load_is_one_line(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Graph(b"no model", (), (), (), ())
    monkeypatch.setattr(_exported, "export", lambda *_: broken)
    told = f"^engine {engine} cannot load the exported graph: [^\n]+$"
    session = load("autoenc", preset="tiny", phase="infer", device="cpu", engine=engine).setup()
    with session, pytest.raises(EngineError, match=told):
        session.infer_step()


@pytest.mark.parametrize("engine", ENGINES)
def test_from_the_command_line(
    engine: str, graphs: dict[Any, Graph], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """One of them in a process of its own, as always; the other would load all of torch and ONNX once more."""
    if engine != "onnxruntime":
        monkeypatch.setattr("fathom.cli.commands.run.isolated", measure)
    arguments = ("run", "memnet", "--preset", "tiny", "--device", "cpu", "--engine", engine, "--out", tmp_path)
    assert fathom(monkeypatch, *arguments, "--phase", "infer", "--steps", 2) == 0
    assert "Warning" not in capfd.readouterr().err
    (record,) = Store(tmp_path).records()
    assert (record.outcome, record.spec.engine, len(record.step_s)) == ("ok", engine, 2)
    assert fathom(monkeypatch, *arguments) == 2
    assert capfd.readouterr().err == f"fathom: engine {engine} is for inference: it cannot train\n"
