"""A user's own model as a workload of the meta device, for counting: its weights are not even allocated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from fathom.core.errors import BadOption, FathomError
from fathom.engine.cost_sheet import CostSheet, cost_sheet
from fathom.engine.simulate import Simulation
from fathom.engine.step_work import step_work
from fathom.measure.own.batch import items_in, on_device, tensors_in
from fathom.measure.own.errors import one_line
from fathom.measure.own.model import OwnModel, fixed_precision, prepared
from fathom.measure.own.target import from_target, imported
from fathom.measure.own.training import Criterion, LossLike, OptimizerLike
from fathom.trace.step_work import StepWork
from fathom.workloads.base import Workload

META = torch.device("meta")
UNSURE = "{} items are the rows of its first tensor, which may be parts of items: its output has no row an item"


def cost_of_target(
    target: str, memory_bytes: int | None = None, loss: LossLike = None, optimizer: OptimizerLike = None
) -> CostSheet:
    """The costs of what package.module:function makes; every fault is one line."""
    workload = _on_meta(target, loss, optimizer)
    try:
        sheet = cost_sheet(workload, memory_bytes)
        unsure = isinstance(workload, OwnModel) and workload.unsure
        return replace(sheet, name=target, notes=[*sheet.notes, UNSURE.format(sheet.batch)] if unsure else sheet.notes)
    except BadOption:
        raise
    except Exception as error:  # the model's own code runs here, and the meta device refuses what needs values
        raise one_line(f"the step of {target} on the meta device, where tensors have no values,", error) from None


def step_of_target(target: str, phase: str, precision: str, items: int | None, *, gpu: bool) -> StepWork:
    """The op calls of a step of what package.module:function makes; every fault is one line."""
    workload = _on_meta(target)
    own = fixed_precision(workload, [precision])
    try:
        step = step_work(workload, phase, "fp32" if own else precision, items, gpu=gpu)
        return replace(step, workload=target, precision=own or step.own_precision or precision)
    except BadOption:
        raise
    except Exception as error:  # the model's own code, as above
        raise one_line(f"the step of {target} on the meta device, where tensors have no values,", error) from None


def _on_meta(target: str, loss: LossLike = None, optimizer: OptimizerLike = None) -> Workload:
    try:
        return workload_on_meta(target, loss, optimizer)
    except FathomError:
        raise
    except Exception as error:
        raise one_line(f"moving {target} to the meta device, where tensors have no values,", error) from None


def workload_on_meta(target: str, loss: LossLike = None, optimizer: OptimizerLike = None) -> Workload:
    """What package.module:function makes, as a workload whose steps can be simulated."""
    made = _made(target)
    model = made["model"]
    if isinstance(model, Workload):
        return model
    if not isinstance(model, nn.Module):
        raise BadOption(f"{target} makes a step; its cost can be counted of a model and a batch alone")
    criterion = Criterion.of(loss if loss is not None else made.get("loss"), META)
    if any(tensor.is_nested for tensor in tensors_in(made["batch"])):
        raise BadOption("nested tensors cannot be counted: the meta device has none; give a padded or packed batch")
    batch = on_device(made["batch"], META)
    items = items_in(batch)
    if items == 0:
        raise BadOption(f"the batch of {target} has no items")
    workload = OwnModel(
        module=prepared(model, batch, META, criterion.wants_target),
        inputs=batch,
        criterion=criterion,
        updated_by=optimizer if optimizer is not None else made.get("optimizer"),
        batch=items or 1,
    )
    return _with_items_of_output(workload)


def _with_items_of_output(workload: OwnModel) -> OwnModel:
    """Where the first tensor has no row an item, as flat indices with offsets, an item is a row of the output."""
    sizes = [tensor.shape for tensor in tensors_in(workload.inputs) if tensor.dim()]
    if not sizes or sizes[0][0] != workload.batch or len({shape[0] for shape in sizes}) == 1:
        return workload
    flat = len(sizes[0]) == 1
    rows = next((shape for shape in _output_shapes(workload) if shape), None)
    if rows is None:
        return replace(workload, unsure=flat)
    known = flat or (len(rows) <= 2 and rows[0] in [shape[0] for shape in sizes])
    return replace(workload, batch=rows[0], ragged=True) if known and rows[0] not in (0, workload.batch) else workload


def _output_shapes(workload: OwnModel) -> list[torch.Size]:
    found: list[torch.Size] = []
    hook = workload.module.register_forward_hook(
        lambda _, __, output: found.extend(tensor.shape for tensor in tensors_in(output))
    )
    try:
        Simulation(workload, "infer").step(counted=False)
    except Exception:  # of the model's own code: it will fail again, where that is told
        return []
    finally:
        hook.remove()
    return found


def _made(target: str) -> dict[str, Any]:
    """Made on the meta device, in no time whatever its size; where its code needs values, made for real."""
    imported(target)  # now: tensors of the module itself would stay on the meta device
    try:
        with META:
            return from_target(target)
    except BadOption:
        return from_target(target)
