"""Export of a workload's inference as one static graph, for runtimes that are not PyTorch: torch.export, then ONNX.

The graph holds the weights as they are at the export, and fits batches of one shape. Random numbers are inputs of it:
they are drawn by torch in the order that eager inference draws them, so that the outputs can be compared.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.overrides import TorchFunctionMode

from fathom.core.errors import EngineError
from fathom.data.base import Batch
from fathom.workloads.base import Output

LARGEST = 2**31 - 1  # bytes of an ONNX model in one piece: a protobuf message's limit
LONGEST = 200  # characters of a reason

Draw = Callable[[torch.Size, torch.dtype], Tensor]
_DRAWS: dict[str, Draw] = {  # op of the graph -> the same numbers again, given the shape and type of its result
    "aten.randn": lambda shape, dtype: torch.randn(shape, dtype=dtype),
    "aten.randn_like": lambda shape, dtype: torch.randn(shape, dtype=dtype),
    "aten.rand": lambda shape, dtype: torch.rand(shape, dtype=dtype),
    "aten.rand_like": lambda shape, dtype: torch.rand(shape, dtype=dtype),
}
_DRAWING = (torch.randn, torch.randn_like, torch.rand, torch.rand_like)  # the functions that become these ops


class NotExportable(EngineError):
    """Why this inference has no static graph, in words that follow "engine NAME "."""


@dataclass(frozen=True)
class Noise:
    """One random tensor that the graph takes as an input."""

    shape: torch.Size
    dtype: torch.dtype
    draw: Draw

    def __call__(self) -> Tensor:
        return self.draw(self.shape, self.dtype)

    def example(self) -> Tensor:
        """Something to trace with: drawing would leave torch's generator elsewhere than eager inference does."""
        return torch.zeros(self.shape, dtype=self.dtype)


@dataclass(frozen=True)
class Graph:
    """Inference for batches of one shape: ONNX bytes, and what goes in and comes out, in their order."""

    onnx: bytes
    columns: tuple[str, ...]  # of the batch, those that inference reads
    noise: tuple[tuple[Noise, bool], ...]  # inputs after the columns; whether the graph reads each
    inputs: tuple[str, ...]  # the graph's names of columns and noise
    outputs: tuple[str, ...]  # the workload's names

    def feeds(self, batch: Batch) -> list[Tensor]:
        """What the graph's inputs are for this batch."""
        drawn = [(draw(), read) for draw, read in self.noise]  # all, as eager does: the next has the same numbers
        return [*(batch[name] for name in self.columns), *(values for values, read in drawn if read)]


def export(model: nn.Module, infer: Callable[[Batch], Output], batch: Batch) -> Graph:
    """The graph of `infer`, which runs `model`, for batches like this one; or NotExportable."""
    outputs: list[str] = []

    def noted(batch: Batch) -> Output:
        output = infer(batch)
        outputs[:] = output  # an attribute of the module would be put back by torch.export
        return output

    with _quiet(), torch.no_grad():
        inference = _Inference(model, noted, tuple(batch))
        program = _traced(inference, tuple(batch.values()))
        noise = _random_numbers(program)
        if noise:
            inference.noise = len(noise)
            program = _traced(inference, (*batch.values(), *(each.example() for each in noise)))
            if _random_numbers(program):
                raise NotExportable("cannot export this inference: it draws random numbers by other means than torch's")
        return _onnx(program, inference.columns, noise, outputs)


class _Inference(nn.Module):
    """`infer` as a module from tensors to tensors: the batch's columns, and then what is random."""

    def __init__(self, model: nn.Module, infer: Callable[[Batch], Output], columns: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model  # registered, so that its weights are the graph's
        self.infer, self.columns = infer, columns
        self.noise = 0  # inputs that replace random numbers; 0 leaves those in the graph
        self.train(model.training)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        batch = dict(zip(self.columns, inputs, strict=False))
        if not self.noise:
            return tuple(self.infer(batch).values())
        with _Given(iter(inputs[len(self.columns) :])):
            return tuple(self.infer(batch).values())


class _Given(TorchFunctionMode):
    """While open, torch's random functions give these tensors instead, one after the other."""

    def __init__(self, given: Iterator[Tensor]) -> None:
        super().__init__()
        self.given = given

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return next(self.given) if func in _DRAWING else func(*args, **(kwargs or {}))


def _traced(inference: _Inference, inputs: tuple[Tensor, ...]) -> ExportedProgram:
    try:
        return torch.export.export(inference, inputs, strict=False)
    except Exception as error:  # whatever a model's Python does under a tracer
        raise NotExportable(f"cannot export this inference: {reason(error)}") from None


def _random_numbers(program: ExportedProgram) -> tuple[Noise, ...]:
    """The graph's random tensors, in the order in which they are drawn; refuses those that torch could not repeat."""
    found = []
    for node in _nodes(program.graph_module):
        if not _is_random(node):
            continue
        op, value = str(node.target).rpartition(".")[0], node.meta["val"]
        if op not in _DRAWS:
            raise NotExportable(f"cannot export this inference: the random numbers of {op} have no ONNX equivalent")
        found.append(Noise(value.shape, value.dtype, _DRAWS[op]))
    return tuple(found)


def _nodes(module: nn.Module) -> Iterator[torch.fx.Node]:
    """The nodes of a graph, and of the graphs inside it where they are run: the body of a loop, say."""
    assert isinstance(module, torch.fx.GraphModule)
    for node in module.graph.nodes:
        inner = getattr(module, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(inner, torch.fx.GraphModule):
            yield from _nodes(inner)
        yield node


def _is_random(node: torch.fx.Node) -> bool:
    """Dropout, attention and LSTMs draw only in training, or with a dropout above 0."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    given = {argument.name: argument.default_value for argument in schema} | dict(node.kwargs)
    given |= {argument.name: value for argument, value in zip(schema, node.args, strict=False)}
    switches = [name for name in ("train", "training", "dropout_p") if name in given]
    return not switches or any(given[name] for name in switches)


def _refuse_changes(program: ExportedProgram) -> None:
    signature = program.graph_signature
    changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if changed:
        raise NotExportable(f"cannot export this inference: it changes {changed[0]}, and a graph keeps nothing")


def _onnx(program: ExportedProgram, columns: tuple[str, ...], noise: tuple[Noise, ...], outputs: list[str]) -> Graph:
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    try:
        converted = torch.onnx.export(program, (), dynamo=True, verbose=False)
        assert converted is not None
        names = [str(value.name) for value in converted.model.graph.inputs]
        read = [bool(placeholders[name].users) for name in program.graph_signature.user_inputs]
        for index in reversed(range(len(names))):
            if not read[index]:  # a label, say: no runtime should ask for it
                del converted.model.graph.inputs[index]
        proto = converted.model_proto
        size = proto.ByteSize()
    except Exception as error:  # an operator that ONNX has not, or a fault of the exporter's
        raise NotExportable(f"cannot export this inference to ONNX: {reason(error)}") from None
    assert converted.exported_program is not None
    _refuse_changes(converted.exported_program)
    if not 0 <= size <= LARGEST:
        raise NotExportable(
            f"cannot export this inference to ONNX: {size / 1e9:.1f} GB, and a model holds 2 GB at most"
        )
    return Graph(
        onnx=proto.SerializeToString(),
        columns=tuple(name for name, kept in zip(columns, read, strict=False) if kept),
        noise=tuple(zip(noise, read[len(columns) :], strict=True)),
        inputs=tuple(name for name, kept in zip(names, read, strict=True) if kept),
        outputs=tuple(outputs),
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Exporters write progress and their own deprecations to the terminal; errors are raised all the same."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


_BRANCH = re.compile(r'File "([^"]+)", line (\d+), in \w+\n\s*(.+)')
_OPERATOR = re.compile(r"No ONNX function found for <OpOverload\(op='([\w.:]+)'")


def reason(error: BaseException) -> str:
    """One line on why an exporter or a runtime gave up: their own messages are pages long."""
    text = _whole_text(error)
    if operator := _OPERATOR.search(text):
        return f"ONNX has no operator for {operator[1]}"
    if "data-dependent" in text and "guard" in text.lower():
        where = _BRANCH.search(text)
        at = f" at {where[1].rpartition('/')[2]}:{where[2]}: {where[3].strip()}" if where else ""
        return f"data-dependent control flow{at}"
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[0] if len(lines[0]) <= LONGEST else f"{lines[0][:LONGEST]}..."


def _whole_text(error: BaseException | None) -> str:
    texts = []
    while error is not None:
        texts.append(str(error))
        error = error.__cause__ or error.__context__
    return "\n".join(texts)
