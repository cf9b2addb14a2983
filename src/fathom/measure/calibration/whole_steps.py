"""Whole steps of a random network: call by call, and in a CUDA graph."""

from __future__ import annotations

import statistics
from contextlib import nullcontext
from functools import partial

import torch

from fathom.core.errors import EngineError
from fathom.data.base import Batch
from fathom.engine.base import Engine, clipping
from fathom.engine.engines.cudagraph import WARM_UP, CudaGraph
from fathom.engine.engines.eager import Eager
from fathom.machine.clock import fastest
from fathom.measure.calibration.op_times import on_gpu
from fathom.measure.own.model import OwnModel
from fathom.workloads.base import State

REPEATS = 15


def step_s(network: OwnModel, phase: str, device: torch.device) -> float:
    """The median of a few steps, each waited for at its end alone."""
    engine, batch = _executed(Eager, network, phase, device)
    work = partial(engine.update if phase == "train" else engine.infer, batch)
    for _ in range(2):
        work()
    return statistics.median(fastest(work, device, 1) for _ in range(REPEATS))


def graph_s(network: OwnModel, device: torch.device) -> float | None:
    """An inference step in a graph, timed as op calls are, behind a kernel; None where it cannot be captured."""
    engine, batch = _executed(CudaGraph, network, "infer", device)
    try:
        for _ in range(WARM_UP + 1):
            engine.infer(batch)
    except EngineError:
        return None
    return on_gpu(engine.infer, [batch], {}, device).seconds


def _executed(by: type[Engine], network: OwnModel, phase: str, device: torch.device) -> tuple[Engine, Batch]:
    model = network.model().train(phase == "train")
    optimizer = network.optimizer(model) if phase == "train" else None
    batch = next(network.feed(network.inputs, device, 0))
    state = State(model=model, device=device, source=None, batches=iter(()), optimizer=optimizer, autocast=nullcontext)
    clip = clipping(state, network.clip_norm)
    return by(state, partial(network.loss, model), partial(network.infer, model), clip), batch
