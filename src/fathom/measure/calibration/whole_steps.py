"""Whole steps of a random network: call by call, and in a CUDA graph."""

from __future__ import annotations

import statistics
from contextlib import nullcontext
from functools import partial

import torch
from torch import nn
from torch.optim import Optimizer

from fathom.core.errors import EngineError
from fathom.data.base import Batch
from fathom.engine.base import clipping
from fathom.engine.engines.cudagraph import WARM_UP, CudaGraph
from fathom.engine.engines.eager import Eager
from fathom.machine.clock import fastest
from fathom.measure.calibration.op_times import on_gpu
from fathom.measure.own.batch import Call
from fathom.measure.own.model import OwnModel
from fathom.workloads.base import Output, State

REPEATS = 15


def step_s(network: OwnModel, phase: str, device: torch.device) -> float:
    """The median of a few steps, each waited for at its end alone."""
    model, call = network.model().train(phase == "train"), next(network.feed(network.inputs, device, 0))
    optimizer = network.optimizer(model) if phase == "train" else None
    state = _state(model, device, optimizer)
    clip = clipping(state, network.clip_norm)
    engine = Eager(state, partial(network.loss, model), partial(network.infer, model), clip)
    work = partial(engine.update if phase == "train" else engine.infer, call)
    for _ in range(2):
        work()
    return statistics.median(fastest(work, device, 1) for _ in range(REPEATS))


def graph_s(network: OwnModel, device: torch.device) -> float | None:
    """An inference step in a graph, timed as op calls are, behind a kernel; None where it cannot be captured."""
    model, call = network.model().eval(), next(network.feed(network.inputs, device, 0))
    inputs = {str(place): tensor for place, tensor in enumerate(call.args)}  # as the batches of workloads, by name

    def infer(batch: Batch) -> Output:
        return network.infer(model, Call(tuple(batch.values())))

    engine = CudaGraph(_state(model, device), lambda batch: batch["0"], infer)
    try:
        for _ in range(WARM_UP + 1):
            engine.infer(inputs)
    except EngineError:
        return None
    return on_gpu(engine.infer, [inputs], {}, device).seconds


def _state(model: nn.Module, device: torch.device, optimizer: Optimizer | None = None) -> State:
    return State(model=model, device=device, source=None, batches=iter(()), optimizer=optimizer, autocast=nullcontext)
