"""A user's module and batch as a workload: what a session needs to run them, and the precision they compute in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from fathom.core.errors import BadOption, NotTrainable
from fathom.engine.session import AUTOCAST, Session
from fathom.measure.own.batch import NO_ROWS, RAGGED, Takes, bind, on_device, rebuilt, tensors_in
from fathom.measure.own.training import Criterion, OptimizerLike, optimizer_of
from fathom.workloads.base import Output, Workload

PRECISIONS = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
OF_FP32 = ("tf32", *AUTOCAST)  # what a model in fp32 can be asked to compute in
REAL = {torch.complex128: torch.float64, torch.complex64: torch.float32}  # what a complex number consists of


@dataclass(frozen=True, kw_only=True)
class OwnModel(Workload):
    """A module, already on its device, and one batch of its inputs, repeated."""

    name: ClassVar = "own"

    module: nn.Module
    inputs: Any
    criterion: Criterion = field(default_factory=Criterion)
    updated_by: OptimizerLike = None
    ragged: bool = False  # its items, such as bags of indices, are rows of the output alone
    unsure: bool = False  # ... and not even that is known

    def model(self) -> nn.Module:
        return self.module

    def synthetic(self, seed: int) -> Any:
        return self.inputs

    def real(self, folder: Path, split: str = "train") -> Any:
        raise BadOption("a model of your own brings its own batch; --data is for the workloads")

    def feed(self, source: Any, device: torch.device, seed: int, start: int = 0) -> Iterator[Any]:
        batch, takes = on_device(source, device), takes_of(self.module)
        while True:
            yield bind(takes, rebuilt(batch, lambda leaf: leaf), wants_target=self.criterion.wants_target)

    def shaped(self, items: int) -> Any:
        """The batch with as many items: every tensor that has one row an item has that many rows."""
        changed = 0

        def resized(leaf: Any) -> Any:
            nonlocal changed
            rows = isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == self.batch
            if not rows:
                return leaf
            changed += 1
            return _with_rows(leaf, items).requires_grad_(leaf.requires_grad)

        batch = on_device(rebuilt(self.inputs, resized), torch.device("meta"))
        if items != self.batch and (self.ragged or not changed):
            raise BadOption(RAGGED if self.ragged else NO_ROWS)
        return bind(takes_of(self.module), batch, wants_target=self.criterion.wants_target)

    def forward(self, model: nn.Module, batch: Any) -> Any:
        return model(*batch.args, **batch.kwargs)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return self.criterion(self.forward(model, batch), batch.target)

    def optimizer(self, model: nn.Module) -> Optimizer:
        if not any(weight.requires_grad for weight in model.parameters()):
            raise NotTrainable(
                f"no parameter of {type(model).__name__} requires a gradient, so there is nothing to train; "
                "take its inference (--phase infer), or unfreeze some"
            )
        return optimizer_of(model, self.updated_by)

    def infer(self, model: nn.Module, batch: Any) -> Output:
        return {str(index): tensor for index, tensor in enumerate(tensors_in(self.forward(model, batch)))}

    def answers(self, output: Output, source: Any) -> list[str]:
        return [f"output {name}: {list(tensor.shape)}" for name, tensor in output.items()]


class OwnSession(Session):
    """A session of a user's model: parts of it may stay in evaluation mode, and only fp32 models are autocast."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert isinstance(self.workload, OwnModel)
        self._modes = {part: part.training for part in self.workload.module.modules()}

    def _setup(self) -> None:
        super()._setup()
        model = self.state.model
        if self.spec.phase == "train" and self._modes[model]:  # a model in evaluation mode is trained as a whole
            for part, mode in self._modes.items():
                part.training = mode and part.training  # the model's own train() may keep parts in evaluation mode

    def _autocast(self) -> Callable[[], AbstractContextManager[Any]]:
        assert isinstance(self.workload, OwnModel)
        return super()._autocast() if _dtypes(self.workload.module.parameters()) == {torch.float32} else nullcontext


def takes_of(module: nn.Module) -> Takes:
    """What the module's forward() takes; a compiled one takes what the module in it does."""
    return Takes.of(getattr(module, "_orig_mod", module).forward)


def prepared(module: nn.Module, batch: Any, device: torch.device, wants_target: bool) -> nn.Module:
    """The module on the device; lazy layers learn their sizes from a first batch."""
    _move(module, device)
    if any(is_lazy(each) for each in [*module.parameters(), *module.buffers()]):
        call = bind(takes_of(module), on_device(batch, device), wants_target=wants_target)
        modes = {part: part.training for part in module.modules()}
        with torch.no_grad():
            module.eval()(*call.args, **call.kwargs)
        for part, mode in modes.items():
            part.training = mode
    return module


def _let_go(module: nn.Module) -> None:
    """Of graphs that hold its weights: those of weight_norm's products, which a hook makes anew."""
    for part in module.modules():
        for name, value in vars(part).items():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                setattr(part, name, value.detach())


def _move(module: nn.Module, device: torch.device) -> None:
    """In place, so that tied weights stay tied and an optimizer keeps its own: for meta, torch makes others.

    Weights of lazy layers, which nothing else holds yet, cannot be swapped.
    """
    if device.type == "meta":
        _let_go(module)
    lazy = any(is_lazy(each) for each in [*module.parameters(), *module.buffers()])
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(before or (device.type == "meta" and not lazy))
    try:
        module.to(device)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def precision_of(module: nn.Module, batch: Any, asked: str | None) -> str | None:
    """What the model computes in: the type of its parameters, else of its inputs; for fp32 ones, what was asked for.

    None where nothing tells.
    """
    found = _dtypes(module.parameters()) or _dtypes(tensors_in(batch))
    own = PRECISIONS.get(next(iter(found))) if len(found) == 1 else "mixed" if found else None
    if asked in (None, "fp32", own):
        return own
    if own == "fp32" and asked in OF_FP32:
        return asked
    if own == "fp32":
        raise BadOption(f"a model in fp32 can be run in {', '.join(OF_FP32)}, not in {asked}")
    raise BadOption(
        f"precision {asked} is for a model in fp32; the parameters of this one are {own or 'of other types'}"
    )


def fixed_precision(workload: Workload, asked: Sequence[str]) -> str | None:
    """Of a model whose parameters are not in fp32, the only one that it can be run in; another that is asked for fails.

    fp32 asks for nothing: it is the default.
    """
    if not isinstance(workload, OwnModel):
        return None
    for each in asked:
        precision_of(workload.module, workload.inputs, each)
    own = precision_of(workload.module, workload.inputs, None)
    return None if own == "fp32" else own


def _dtypes(tensors: Any) -> set[torch.dtype]:
    """Those of its floating-point tensors."""
    types = {REAL.get(tensor.dtype, tensor.dtype) for tensor in tensors}
    return {each for each in types if each.is_floating_point}


def _with_rows(tensor: Tensor, items: int) -> Tensor:
    """A tensor of the meta device with so many rows, whose dimensions are in the same order in memory."""
    shape = (items, *tensor.shape[1:])
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda dim: -strides[dim])
    dense = tensor.new_empty([shape[dim] for dim in order], device="meta")
    return dense.permute([order.index(dim) for dim in range(tensor.dim())])
