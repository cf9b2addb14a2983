"""cudagraph: a step is captured once for each shape of batch as a CUDA graph, and replayed from then on.

One launch replaces thousands, so that a host that cannot launch small kernels fast enough is no longer the limit. Where
the optimizer can be captured the graph is the whole step; else it ends with clipping, and the optimizer runs eagerly
after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Optimizer

from fathom.core.errors import EngineError, first_line
from fathom.data.base import Batch
from fathom.engine.base import Engine, Infer, Loss
from fathom.engine.engines.fused import has_fused_form, set_fused
from fathom.workloads.base import Output, State, Workload

WARM_UP = 3  # eager steps before the first capture, in which libraries choose algorithms and optimizers make state
WARM_UP_SHAPE = 1  # the same for each further shape

Result = TypeVar("Result", Tensor, Output)


@dataclass
class _Graph(Generic[Result]):
    """One captured shape: where its batch is read from, what it gives, and the gradients it leaves."""

    inputs: Batch
    eager_calls: int
    graph: torch.cuda.CUDAGraph | None = None
    result: Result | None = None
    gradients: tuple[Tensor | None, ...] = ()


class CudaGraph(Engine):
    """The work must read and write the same tensors at every call and never wait for the host.

    Random numbers come from torch's own generator, which torch moves on at every replay: losses equal eager's.
    """

    name: ClassVar = "cudagraph"
    layer: ClassVar = 2

    def __init__(self, state: State, loss: Loss, infer: Infer, clip: Callable[[], object] | None = None) -> None:
        super().__init__(state, loss, infer, clip)
        self._stream = torch.cuda.Stream(state.device)  # type: ignore[no-untyped-call]  # never the default one
        self._pool: Any = torch.cuda.graph_pool_handle()  # shared, as no two graphs are replayed at once
        self._updates: dict[tuple[Any, ...], _Graph[Tensor]] = {}
        self._outputs: dict[tuple[Any, ...], _Graph[Output]] = {}
        self._whole_step = state.optimizer is not None and _can_be_captured(state.optimizer)
        self._rates: list[float] | None = None  # learning rates that are captured as they are; None: read at a replay
        self._prepared = False

    @classmethod
    def refusal(cls, workload: Workload, device: torch.device, phase: str) -> str | None:
        return None if device.type == "cuda" else f"needs an NVIDIA GPU, not {device}"

    def update(self, batch: Batch) -> Tensor:
        if not self._prepared:
            self._prepare_optimizer()
        if self._rates is not None and self._rates != _rates(self.state.optimizer):
            self._updates.clear()  # a schedule changes what was captured as constant
            self._rates, self._whole_step = None, False
        found = self._known(self._updates, batch)
        loss = self._run(found, self._step)
        if not self._whole_step:
            if found.graph is not None:
                for weight, gradient in zip(self.state.weights, found.gradients, strict=True):
                    weight.grad = gradient  # each graph has written its own
            self.apply()
        return loss.clone()  # the next replay writes over it

    def infer(self, batch: Batch) -> Output:
        output = self._run(self._known(self._outputs, batch), self.output)
        return {name: value.clone() for name, value in output.items()}

    def _step(self, batch: Batch) -> Tensor:
        loss = self.gradients(batch)
        self.clip()
        if self._whole_step:
            self.apply()
        return loss

    def _prepare_optimizer(self) -> None:
        """Step counts and learning rates on the device, where a graph sees them change."""
        self._prepared = True
        optimizer = self.state.optimizer
        if optimizer is None or not self._whole_step:
            return
        if not _reads_rates(optimizer):
            self._rates = _rates(optimizer)
            return
        if has_fused_form(optimizer, self.state.device):
            set_fused(optimizer)  # one kernel in place of a dozen
        for group in optimizer.param_groups:
            if "capturable" in group:
                group["capturable"] = True
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=self.state.device)

    def _known(self, graphs: dict[tuple[Any, ...], _Graph[Result]], batch: Batch) -> _Graph[Result]:
        """The graph for batches of this shape, with this batch in its inputs."""
        shape = tuple((column.shape, column.dtype) for column in batch.values())
        if shape not in graphs:
            inputs = {name: torch.empty_like(column) for name, column in batch.items()}
            graphs[shape] = _Graph(inputs, WARM_UP_SHAPE if graphs else WARM_UP)
        found = graphs[shape]
        # one call for all columns: some steps take less time than the host needs to launch a dozen copies
        torch._foreach_copy_([found.inputs[name] for name in batch], list(batch.values()))
        return found

    def _run(self, found: _Graph[Result], work: Callable[[Batch], Result]) -> Result:
        """Each call does the work exactly once: eagerly at first, then by replay."""
        if found.eager_calls > 0:
            found.eager_calls -= 1
            return self._aside(lambda: work(found.inputs))
        if found.graph is None:
            self._capture(found, work)
        assert found.graph is not None
        assert found.result is not None
        found.graph.replay()
        return found.result

    def _capture(self, found: _Graph[Result], work: Callable[[Batch], Result]) -> None:
        """Notes the launches down, and runs none of them."""
        graph = torch.cuda.CUDAGraph()
        here = torch.cuda.current_stream(self.state.device)
        try:
            with torch.cuda.graph(graph, self._pool, self._stream):
                found.result = work(found.inputs)
        except RuntimeError as error:
            _leave_capture(here)
            raise EngineError(f"engine cudagraph cannot capture this step: {_first_cause(error)}") from None
        found.graph = graph
        found.gradients = tuple(weight.grad for weight in self.state.weights)

    def _aside(self, work: Callable[[], Result]) -> Result:
        """On the stream of the capture, as torch asks of what is to be captured later."""
        here = torch.cuda.current_stream(self.state.device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            result = work()
        here.wait_stream(self._stream)
        return result


def _leave_capture(here: torch.cuda.Stream) -> None:
    """Back to the stream before a capture that failed, with random numbers that go on.

    torch leaves the stream current and its generator waiting for the end of the capture: whatever draws a number next,
    in any model of this process, would fail.
    """
    torch.cuda.set_stream(here)
    generator = torch.cuda.default_generators[here.device_index]
    fresh = torch.Generator(here.device)
    fresh.set_state(generator.get_state())
    generator.graphsafe_set_state(fresh)


def _can_be_captured(optimizer: Optimizer) -> bool:
    """Adagrad's rate is a number of the host, which a graph keeps: it is captured for as long as it stays the same."""
    constant = isinstance(optimizer, Adagrad) and not any(group["lr_decay"] for group in optimizer.param_groups)
    return constant or _reads_rates(optimizer)


def _reads_rates(optimizer: Optimizer) -> bool:
    """Whether it can read its learning rate from the device. SGD is not called capturable; its fused form can."""
    capturable = all("capturable" in group for group in optimizer.param_groups)
    return capturable or (isinstance(optimizer, SGD) and has_fused_form(optimizer, torch.device("cuda")))


def _rates(optimizer: Optimizer | None) -> list[float]:
    return [] if optimizer is None else [float(group["lr"]) for group in optimizer.param_groups]


def _first_cause(error: BaseException) -> str:
    """What broke the capture: ending a broken one raises once more, and hides it."""
    while error.__context__ is not None:
        error = error.__context__
    return first_line(error)
