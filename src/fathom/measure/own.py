"""A user's own model beside the eight: any module and batch, profiled in the same way into the same record."""

from __future__ import annotations

import copy
import dataclasses
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from fathom.core import plugins
from fathom.core.errors import BadOption, FathomError
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.engine.session import Session
from fathom.machine.disturbance import Watch
from fathom.machine.host import fingerprint, gpu_uuid
from fathom.measure.profiling import profiled
from fathom.workloads.base import Output, Workload

WARMUP = 3
LONGEST_NAME = 100  # of a model: the file of its record is called after it


@dataclass(frozen=True, kw_only=True)
class OwnModel(Workload):
    """A module and one batch of its inputs, repeated. Trained with plain SGD on its loss."""

    name: ClassVar = "own"

    module: nn.Module
    inputs: Any
    criterion: Callable[[Any], Tensor] | None = None

    def model(self) -> nn.Module:
        """A copy: the user's own module keeps its weights, gradients, mode and device."""
        try:
            return copy.deepcopy(self.module)
        except Exception as error:
            why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise BadOption(f"the model cannot be copied, and profiling would change it: {why}") from None

    def synthetic(self, seed: int) -> Any:
        return self.inputs

    def real(self, folder: Path, split: str = "train") -> Any:
        raise BadOption("a model of your own brings its own batch; --data is for the workloads")

    def feed(self, source: Any, device: torch.device, seed: int, start: int = 0) -> Iterator[Any]:
        batch = _moved(source, device)
        while True:
            yield batch

    def forward(self, model: nn.Module, batch: Any) -> Any:
        if isinstance(batch, dict):
            return model(**batch)
        return model(*batch) if isinstance(batch, tuple | list) else model(batch)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The criterion given, else the loss that the model itself returns, else the mean of its outputs."""
        output = self.forward(model, batch)
        if self.criterion is not None:
            return self.criterion(output)
        own = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        if isinstance(own, Tensor):
            return own
        floats = [tensor for tensor in _tensors(output) if tensor.is_floating_point()]
        if not floats:
            raise BadOption("the model returns no floating-point tensor to train on; give a loss")
        return torch.stack([tensor.float().mean() for tensor in floats]).sum()

    def optimizer(self, model: nn.Module) -> Optimizer:
        return SGD(model.parameters(), lr=1e-6)  # small: the batch repeats, and only the work is of interest

    def infer(self, model: nn.Module, batch: Any) -> Output:
        return {str(index): tensor for index, tensor in enumerate(_tensors(self.forward(model, batch)))}

    def answers(self, output: Output, source: Any) -> list[str]:
        return [f"output {name}: {list(tensor.shape)}" for name, tensor in output.items()]


def profile(
    model: nn.Module | Workload,
    batch: Any = None,
    *,
    loss: Callable[[Any], Tensor] | None = None,
    phase: str = "train",
    device: str = "auto",
    precision: str = "fp32",
    trace_out: Path | None = None,
    name: str | None = None,
) -> Record:
    """The op rows of a model: profile(module, batch), or profile(workload). loss takes what the model returns.

    The record carries the name, which is that of the module's class where none is given:

        record = fathom.profile(module, batch, name="mine")
        fathom.nearest(record)  # which of the paper's eight it is like, if any; they are of training
        eight = list(fathom.Store("results/h200").records())
        fathom.nearest(record, eight)  # which of the measured ones
        fathom.write_report([record, *eight], Path("report.html"))
    """
    if isinstance(model, Workload):
        workload, called = model, model.name
    else:
        workload, called = (
            OwnModel(module=model, inputs=batch, criterion=loss, batch=_items(batch)),
            type(model).__name__,
        )
    spec = RunSpec(
        workload=_file_safe(name or called), phase=phase, device=device, precision=precision, kind="profiled"
    )
    with Session(spec, workload).setup() as session:
        session.run(WARMUP)
        watch = Watch(session.device)
        found = profiled(session, trace_out=trace_out)
        watch.look()
        parameters = sum(weight.numel() for weight in session.state.weights)
        return Record(
            spec=_told_apart(spec, workload, parameters),
            machine=fingerprint(session.device),
            device=str(session.device),
            gpu_uuid=gpu_uuid(session.device),
            outcome="ok",
            step_s=found.free_step_s or found.plain_step_s,
            items_per_step=session.items_per_step,
            parameters=parameters,
            profile=found,
            disturbance=watch.disturbance(),
        )


_LIBRARIES = (str(Path(torch.__file__).parent), "<frozen")  # where a line number is of no use


def users_fault(target: str, error: Exception) -> Exception:
    """An error of the user's model in one line; one that comes from Fathom alone, as it is."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    ours, layers = str(Path(__file__).parents[1]), str(Path(nn.__file__).parent)
    in_model = any(file.startswith(layers) or not file.startswith((ours, *_LIBRARIES)) for file in files)
    return _one_line(target, error) if in_model and not files[-1].startswith(ours) else error


def _one_line(target: str, error: Exception) -> BadOption:
    """What went wrong in a user's code, and where in it."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith((str(Path(__file__).parents[1]), *_LIBRARIES))]
    where = f" ({theirs[-1].filename}, line {theirs[-1].lineno})" if theirs else ""
    what = str(error).strip().partition("\n")[0]
    return BadOption(f"{target} failed: {type(error).__name__}: {what}{where}")


def from_target(target: str) -> tuple[Any, ...]:
    """What package.module:function makes: a Workload, or a module and a batch, or those and a loss."""
    try:
        make = plugins.named_object(target)
    except FathomError:
        raise
    except Exception as error:
        raise _one_line(target, error) from None
    if not callable(make):
        raise BadOption(f"{target} is no function, but {type(make).__name__}")
    try:
        made = make()
    except Exception as error:
        raise _one_line(target, error) from None
    if isinstance(made, Workload):
        return (made,)
    if isinstance(made, tuple) and len(made) in {2, 3} and isinstance(made[0], nn.Module):
        return made
    raise BadOption(f"{target} must return a Workload, or a module and a batch, not {type(made).__name__}")


def _told_apart(spec: RunSpec, workload: Workload, parameters: int) -> RunSpec:
    """The spec with the size of a user's model in it: one that has changed since is not averaged with its old self."""
    if not isinstance(workload, OwnModel):
        return spec
    return dataclasses.replace(spec, options={"batch": workload.batch, "parameters": parameters})


def _file_safe(name: str) -> str:
    """A name that can begin the name of a record's file."""
    return name.replace("/", "_").replace("\0", "_")[:LONGEST_NAME]


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _moved(item, device) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_moved(item, device) for item in value)
    return value


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, tuple | list) else []


def _items(batch: Any) -> int:
    tensors = _tensors(batch)
    return len(tensors[0]) if tensors and tensors[0].dim() else 1
