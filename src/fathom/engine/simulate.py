"""One step of a workload on the meta device: its FLOP, its bytes and its peak memory, without running it.

The step is the engine's own (forward, backward, clip, apply), op by op in its order; only the device is missing. The
memory is that of a GPU: a tensor lives as long as it would there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.optim import Optimizer, SparseAdam, adam
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from fathom.engine.as_on_gpu import AsOnGPU
from fathom.engine.base import clipping
from fathom.engine.engines.eager import Eager
from fathom.engine.live import LiveBytes, held_bytes
from fathom.engine.op_calls import call_of
from fathom.engine.replaced import replaced
from fathom.engine.session import AUTOCAST
from fathom.engine.sparse_rows import parts_of
from fathom.engine.stand_ins import ON_CPU, STAND_INS
from fathom.engine.workspaces import convolution_bytes
from fathom.trace.flops import bytes_moved, flop, is_multiply_add
from fathom.trace.step_work import BACKWARD, FORWARD, OPTIMIZER
from fathom.workloads.base import State, Workload

META = torch.device("meta")
READS = {Tensor.item: float, Tensor.__float__: float, Tensor.__int__: int, Tensor.__bool__: bool}
WITHOUT_WORK = ("prim", "profiler")  # namespaces of ops: questions about a tensor, and marks
Watch = Callable[[str, Any, tuple[Any, ...], dict[str, Any]], None]  # part of the step, op, arguments


@dataclass(frozen=True)
class Work:
    """What the ops of one part of a step do."""

    mac: float = 0.0  # multiply-adds of matrix products and convolutions: 2 FLOP each
    flop: float = 0.0  # all arithmetic, theirs included
    bytes: float = 0.0  # every operand read once, every result written once


@dataclass(frozen=True)
class Simulated:
    """One step of so many items, in plain numbers. Bytes are in the allocator's blocks."""

    items: int
    parameters: int
    weight_bytes: int  # parameters and buffers
    trained_bytes: int  # parameters that have gradients in training
    optimizer_bytes: int
    batch_bytes: int
    activation_bytes: int  # what forward leaves for backward
    peak_bytes: int  # of forward and backward
    apply_peak_bytes: int  # of clipping and the optimizer
    work: dict[str, Work]  # by part of the step
    uncounted: dict[str, int] = field(default_factory=dict)  # ops without a formula, and how often they were called
    gradient_bytes: int = 0  # less than what is trained where some are sparse
    own_autocast: bool = False  # whether the model casts by itself, whatever precision was asked for
    branches: tuple[str, ...] = ()  # places of a user's code with a branch on a value, which counts as not taken

    @property
    def step_peak_bytes(self) -> int:
        return max(self.peak_bytes, self.apply_peak_bytes)

    @property
    def left_out(self) -> list[str]:
        """What is in none of its numbers, in words."""
        return [f"data-dependent branch, counted as not taken: {each}" for each in self.branches]

    @property
    def total(self) -> Work:
        parts = self.work.values()
        return Work(sum(w.mac for w in parts), sum(w.flop for w in parts), sum(w.bytes for w in parts))


class _Counter:
    """Adds up what ops do, by part of the step, and notes what is live when backward begins."""

    def __init__(self, counted: bool, watch: Watch | None = None) -> None:
        self.counted, self._watch = counted, watch
        self.part = FORWARD
        self.has_loss = False  # gradients taken before it are the model's own, as those of a differential equation
        self.sums: dict[str, list[float]] = {}
        self.uncounted: Counter[str] = Counter()
        self.live: LiveBytes | None = None
        self.after_forward = 0

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.part == FORWARD and self.has_loss and torch._C._current_graph_task_id() != -1:
            self.part = BACKWARD
            self.after_forward = self.live.live if self.live else 0
        if self._watch is not None:
            self._watch(self.part, func, args, kwargs)
        if not self.counted or func.namespace in WITHOUT_WORK:
            return
        call = call_of(func, args, kwargs)
        found, moved = flop(call), bytes_moved(call)
        if found is None and moved is None:
            self.uncounted[call.op] += 1
        sums = self.sums.setdefault(self.part, [0.0, 0.0, 0.0])
        sums[0] += (found or 0.0) / 2 if is_multiply_add(call.op) else 0.0
        sums[1] += found or 0.0
        sums[2] += moved or 0.0

    def work(self) -> dict[str, Work]:
        return {part: Work(*sums) for part, sums in self.sums.items()}


class Simulation:
    """A workload on the meta device, of which steps of any size and precision can be taken: a GPU's, or a CPU's."""

    def __init__(self, workload: Workload, phase: str, gpu: bool = True) -> None:
        self.workload, self.phase, self.gpu = workload, phase, gpu
        with META, LiveBytes(stand_ins=STAND_INS):
            self.model = workload.model()
        self.optimizer = _with_state(workload, self.model, gpu) if phase == "train" else None

    def step(
        self, precision: str = "fp32", items: int | None = None, counted: bool = True, watch: Watch | None = None
    ) -> Simulated:
        """A training or inference step, with the optimizer's state as an earlier one left it.

        Without FLOP and bytes, which are counted op by op, it takes half the time. `watch` is shown every op.
        """
        items = items or self.workload.batch
        batch = self.workload.shaped(items)
        modes = {part: part.training for part in self.model.modules()}  # a user's module is the same in all simulations
        self.model.train(self.phase == "train")
        if self.phase == "train" and modes[self.model]:
            # parts in evaluation mode stay so, as frozen layers do, and those that its own train() puts there
            _set({part: mode and part.training for part, mode in modes.items()})
        as_on_gpu, counter = AsOnGPU(layers=self.gpu), _Counter(counted, watch)
        engine = self._engine(_autocast(as_on_gpu, precision), counter)
        live = counter.live = LiveBytes(counter, *((STAND_INS, convolution_bytes) if self.gpu else (ON_CPU, None)))
        held = [[*self.model.parameters(), *self.model.buffers()], _state_tensors(self.optimizer), _tensors(batch)]
        for tensors in held:
            live.hold(tensors)
        try:
            peak, apply_peak = _step(engine, batch, self.phase, live, counter, as_on_gpu)
            made = [each.grad for each in self.model.parameters() if each.grad is not None]
            gradients = held_bytes(part for each in made for part in parts_of(each))
        finally:
            for weight in self.model.parameters():
                weight.grad = None
            _set(modes)
        found = self._simulated(items, counter, [held_bytes(tensors) for tensors in held], peak, apply_peak)
        asked = tuple(as_on_gpu.branches)
        return replace(found, gradient_bytes=gradients, own_autocast=as_on_gpu.own_autocast, branches=asked)

    def _engine(self, autocast: Callable[[], AbstractContextManager[Any]], counter: _Counter) -> Eager:
        model, workload = self.model, self.workload

        def loss(batch: Any) -> Tensor:
            found = workload.loss(model, batch)
            counter.has_loss = True
            return found

        state = State(
            model=model, device=META, source=None, batches=iter(()), optimizer=self.optimizer, autocast=autocast
        )
        clip = clipping(state, workload.clip_norm)
        return Eager(state, loss, partial(workload.infer, model), clip)

    def _simulated(self, items: int, counter: _Counter, held: list[int], peak: int, apply_peak: int) -> Simulated:
        weights, states, inputs = held
        trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        return Simulated(
            items=items,
            parameters=sum(weight.numel() for weight in self.model.parameters()),
            weight_bytes=weights,
            trained_bytes=held_bytes(trained) if self.phase == "train" else 0,
            optimizer_bytes=states,
            batch_bytes=inputs,
            activation_bytes=max(0, counter.after_forward - weights - states - inputs),
            peak_bytes=peak,
            apply_peak_bytes=apply_peak,
            work=counter.work(),
            uncounted=dict(counter.uncounted),
        )


def _set(modes: Mapping[nn.Module, bool]) -> None:
    for part, mode in modes.items():
        part.training = mode


def simulate(workload: Workload, phase: str, precision: str = "fp32") -> Simulated:
    """One step of the workload's own batch."""
    return Simulation(workload, phase).step(precision)


def _step(
    engine: Eager, batch: Any, phase: str, live: LiveBytes, counter: _Counter, as_on_gpu: AsOnGPU
) -> tuple[int, int]:
    """Peaks of forward and backward, and of what follows them."""
    live.restart_peak()
    with META, as_on_gpu, as_on_gpu.recomputing(), as_on_gpu.model_autocast(), _plain_attention(), _unchecked(), live:
        if phase == "infer":
            engine.infer(batch)
            return live.peak, 0
        engine.gradients(batch)
        peak = live.peak
        live.restart_peak()
        counter.part = OPTIMIZER
        engine.clip()
        with _AnyValue():
            engine.apply()
        return peak, live.peak


class _AnyValue(TorchFunctionMode):
    """An update reads 1 of any tensor, as the meta device has no values: Adafactor scales by the norms of weights."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in READS or not args[0].is_meta:
            return func(*args, **(kwargs or {}))
        whole = func is Tensor.item and not args[0].is_floating_point()
        return 1 if whole else READS[func](1)


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Layers of nn.Transformer op by op, as in training: their fast path for inference looks at the mask's values."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def _unchecked() -> Iterator[None]:
    """Distributions without a look at the values of their parameters."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


def _with_state(workload: Workload, model: nn.Module, gpu: bool) -> Optimizer:
    """The optimizer after a step, in the implementation that it has on a GPU: fused where asked, else for each.

    On a CPU it takes one tensor after the other, unless asked otherwise.
    """
    optimizer = workload.optimizer(model)
    optimizer._need_device_dtype_check_for_fused = False  # type: ignore[attr-defined]  # the meta device is not listed
    for group in optimizer.param_groups:
        if gpu and group.get("foreach", False) is None and not group.get("fused"):
            group["foreach"] = True
    for state in optimizer.state.values():
        if "step" in state:  # as Adagrad has from the start on: made with the model, it is not on the host
            state["step"] = torch.zeros_like(state["step"], device="cpu")
    for weight in model.parameters():
        weight.grad = _any_gradient(weight, optimizer) if weight.requires_grad else None
    # Adam asks for it in its first step whatever the optimizer says, and does not list the meta device
    unchecked = replaced(adam, {"_device_dtype_check_for_fused": lambda *_, **__: None})
    with _AnyValue(), LiveBytes(stand_ins=STAND_INS), unchecked:
        optimizer.step()
    for weight in model.parameters():
        weight.grad = None
    return optimizer


def _any_gradient(weight: Tensor, optimizer: Optimizer) -> Tensor:
    """Dense, though it may be sparse later: momentum of sparse gradients grows to the whole table."""
    if isinstance(optimizer, SparseAdam):  # which refuses dense ones
        return torch.empty(weight.shape, dtype=weight.dtype, layout=torch.sparse_coo, device=META)
    return torch.empty_like(weight)


def _autocast(as_on_gpu: AsOnGPU, precision: str) -> Callable[[], AbstractContextManager[Any]]:
    """Of a precision that is not autocast's, nothing: the network computes in the types that it has."""
    return partial(as_on_gpu.autocast, AUTOCAST[precision]) if precision in AUTOCAST else nullcontext


def _state_tensors(optimizer: Optimizer | None) -> list[Tensor]:
    """Those on the device; counters of steps stay on the host."""
    return [each for each in _tensors(list(optimizer.state.values()) if optimizer else []) if each.is_meta]


def _tensors(value: Any) -> list[Tensor]:
    """Those in a batch; that of a user's model is a call with arguments."""
    value = [vars(value), value] if hasattr(value, "__dict__") else value
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
