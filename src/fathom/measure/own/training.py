"""What trains a user's model: the loss and the optimizer that the user names, gives or leaves open."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.loss import _Loss
from torch.optim import LBFGS, SGD, Optimizer

from fathom.core import plugins
from fathom.core.errors import BadOption, NotTrainable, UnknownName
from fathom.measure.own.batch import Takes, tensors_in
from fathom.measure.own.errors import called

LEARNING_RATE = 1e-6  # small: the batch repeats, and only the work is of interest
SCORES = ("logits", "scores", "prediction", "predictions", "output")  # what a model may call them among its outputs
OVER_CLASSES = ("cross_entropy", "nll_loss")  # losses that want the classes in the second dimension

LossLike: TypeAlias = str | Callable[..., Any] | None
OptimizerLike: TypeAlias = str | Callable[[nn.Module], Optimizer] | type[Optimizer] | Optimizer | None


@dataclass(frozen=True)
class Criterion:
    """How a loss comes of an output and a target; without a function, as the model itself says."""

    function: Callable[..., Any] | None = None
    wants_target: bool = False
    on_scores: bool = False  # one of torch's own: it takes one tensor of the outputs

    @classmethod
    def of(cls, loss: LossLike, device: torch.device) -> Criterion:
        """From a name of torch.nn.functional, `package.module:function`, a module such as CrossEntropyLoss, a function.

        One that needs two arguments gets the output and the target, any other the output alone.
        """
        if loss is None:
            return cls()
        if isinstance(loss, str):
            loss = plugins.named_object(loss) if ":" in loss else _functional(loss)
        if not callable(loss):
            raise BadOption(f"the loss must be a function of what the model returns, not {type(loss).__name__}")
        if isinstance(loss, nn.Module):
            loss = copy.deepcopy(loss).to(device)
        takes = Takes.of(loss.forward if isinstance(loss, nn.Module) else loss)
        torchs = isinstance(loss, _Loss) or getattr(loss, "__module__", None) == functional.__name__
        return cls(loss, len(takes.required) >= 2, on_scores=torchs)

    def __call__(self, output: Any, target: Any) -> Tensor:
        if self.function is None:
            return _checked(_models_own(output), "the model's own loss")
        if self.on_scores:
            output = _scores(output)
            if self._is_over_classes and _classes_last(output, target):
                output, target = output.flatten(0, -2), target.flatten()
        loss = self.function(output, target) if self.wants_target else self.function(output)
        return _checked(loss, f"the loss {called(self.function)}")

    @property
    def _is_over_classes(self) -> bool:
        return isinstance(self.function, nn.CrossEntropyLoss | nn.NLLLoss) or (
            getattr(self.function, "__name__", "") in OVER_CLASSES
        )


def _functional(name: str) -> Callable[..., Any]:
    known = [each for each in dir(functional) if each.endswith(("_loss", "_entropy", "_with_logits", "_div"))]
    known = [each for each in known if not each.startswith("_")]
    if name not in known:
        raise UnknownName.among("loss", name, known)
    function: Callable[..., Any] = getattr(functional, name)
    return function


def _models_own(output: Any) -> Any:
    """The loss that the model itself returns, else the mean of its outputs."""
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own
    found = [tensor.abs() if tensor.is_complex() else tensor for tensor in tensors_in(output)]
    floats = [tensor for tensor in found if tensor.is_floating_point()]
    if not floats:
        raise NotTrainable("the model returns no floating-point tensor to train on; give a loss")
    trained = [tensor for tensor in floats if tensor.requires_grad] or floats
    return torch.stack([tensor.float().mean() for tensor in trained]).sum()


def _scores(output: Any) -> Tensor:
    """The tensor that one of torch's losses is of: the output, what it calls logits, else its first one of floats."""
    named = [output.get(name) if isinstance(output, Mapping) else getattr(output, name, None) for name in SCORES]
    found = [each for each in (output, *named, *tensors_in(output)) if isinstance(each, Tensor)]
    floats = [tensor for tensor in found if tensor.is_floating_point()]
    if not floats:
        raise BadOption("the model returns no floating-point tensor for the loss")
    return floats[0]


def _classes_last(output: Tensor, target: Any) -> bool:
    """As language models have them: [batch, length, classes] beside [batch, length]."""
    return isinstance(target, Tensor) and output.dim() > 2 and output.shape[:-1] == target.shape


def _checked(loss: Any, what: str) -> Tensor:
    if not isinstance(loss, Tensor):
        raise BadOption(f"{what} is a plain {type(loss).__name__}: it must be a tensor computed from the output")
    if loss.numel() != 1:
        raise BadOption(f"{what} has the shape {list(loss.shape)}: it must be one number, such as a mean")
    if not loss.is_floating_point():
        raise BadOption(f"{what} has the type {loss.dtype}: it must be a floating-point number")
    if not loss.requires_grad:
        raise NotTrainable(f"{what} depends on no trainable parameter: it was detached, or computed without gradients")
    return loss if loss.dim() == 0 else loss.reshape(())


def optimizer_of(model: nn.Module, optimizer: OptimizerLike) -> Optimizer:
    """From a name of torch.optim, `package.module:function`, a class of optimizers, or a function of the model."""
    if isinstance(optimizer, Optimizer):
        return _covering(model, optimizer)
    trainable = [weight for weight in model.parameters() if weight.requires_grad]
    if isinstance(optimizer, str) and ":" in optimizer:
        optimizer = plugins.named_object(optimizer)
    if optimizer is None or isinstance(optimizer, str):
        optimizer = _named_optimizer(optimizer or SGD.__name__)
    if not callable(optimizer):
        raise BadOption(f"the optimizer must be a name or a function of the model, not {type(optimizer).__name__}")
    make: Callable[..., Any] = optimizer
    whole_class = inspect.isclass(optimizer) and issubclass(optimizer, Optimizer)
    made = make(trainable, lr=LEARNING_RATE) if whole_class else make(model)
    if not isinstance(made, Optimizer):
        raise BadOption(f"{called(optimizer)} must return a torch Optimizer, not {type(made).__name__}")
    return _covering(model, made)


def _covering(model: nn.Module, optimizer: Optimizer) -> Optimizer:
    if isinstance(optimizer, LBFGS):
        raise NotTrainable(
            "lbfgs runs the model several times in a step, as often as values say; give the step itself as a function "
            "to `fathom profile`"
        )
    own = {id(weight) for weight in model.parameters()}
    if not any(id(weight) in own for group in optimizer.param_groups for weight in group["params"]):
        raise BadOption(f"the optimizer {type(optimizer).__name__} has none of the model's parameters")
    return optimizer


def _named_optimizer(name: str) -> type[Optimizer]:
    found = [each for each in vars(torch.optim).values() if inspect.isclass(each) and issubclass(each, Optimizer)]
    known = {each.__name__.lower(): each for each in found if each is not Optimizer}
    if name.lower() not in known:
        raise UnknownName.among("optimizer", name, known.keys() - {LBFGS.__name__.lower()})
    return known[name.lower()]
