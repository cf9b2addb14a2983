"""How the marks in a trace are named: Fathom's own, torch.profiler's, and autograd's nodes."""

from __future__ import annotations

import re
from functools import cache

# how the names of marks begin that have the category of an op: our own fast ones, and all of torch before 1.10
MARKS = ("fathom.", "ProfilerStep#", "Optimizer.step#", "Optimizer.zero_grad#", "enumerate(DataLoader)#")
LAYER = "fathom.layer "  # followed by the module path
MODULE = "nn.Module: "  # how torch.profiler marks modules with with_stack=True
DATA = "fathom.data"
DATA_MARKS = (DATA, "enumerate(DataLoader)")  # of preparing a batch: ours, and how torch marks its loader
FORWARD = "fathom.forward"
PHASES = {f"fathom.{phase}": phase for phase in ("data", "forward", "backward", "optimizer")}
EVALUATE = "autograd::engine::evaluate_function"
BACKWARD_NODE = re.compile(r"\w*Backward\d*|torch::autograd::AccumulateGrad")  # all that torch before 1.8 has


def is_mark(name: str) -> bool:
    return name.startswith(MARKS)


def is_module(name: str) -> bool:
    return name.startswith(MODULE)


@cache
def is_backward_node(op: str) -> bool:
    return BACKWARD_NODE.fullmatch(op) is not None


def is_backward(op: str) -> bool:
    """Of the backward pass: one of autograd's nodes, or the call around it."""
    return op.startswith(EVALUATE) or is_backward_node(op)
