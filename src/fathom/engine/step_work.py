"""The op calls of one step, with their work and arguments, taken on the meta device: what a prediction is made from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from fathom.engine.call_specs import encode
from fathom.engine.cost_sheet import peak_bytes
from fathom.engine.op_calls import call_of
from fathom.engine.simulate import Simulation
from fathom.engine.sparse_rows import parts_of
from fathom.trace.flops import cost
from fathom.trace.step_work import GradientReady, OpWork, StepWork
from fathom.trace.taxonomy import leaf_type, type_of
from fathom.workloads.base import Workload


def step_work(
    workload: Workload, phase: str = "train", precision: str = "fp32", items: int | None = None, *, gpu: bool = True
) -> StepWork:
    """A step of so many items, or of the workload's own batch, with the ops that a GPU, or a CPU, would run."""
    return StepWorks(workload, phase, gpu=gpu).at(precision, items)


class StepWorks:
    """Steps of one workload at several batches and precisions: its network is made once."""

    def __init__(self, workload: Workload, phase: str, *, gpu: bool = True) -> None:
        self._simulation = Simulation(workload, phase, gpu)
        beside = workload.passes_beside() if phase == "train" else ()
        self._beside = Simulation(workload, "infer", gpu) if beside else None

    def at(self, precision: str = "fp32", items: int | None = None) -> StepWork:
        """With the passes that a training step makes beside its updates, which come first."""
        steps, calls = self._simulation, _Calls()
        workload = steps.workload
        updates = workload.updates_per_step if steps.phase == "train" else 1
        items = workload.items_per_step(steps.phase) // updates if items is None else items
        hooks = [
            weight.register_post_accumulate_grad_hook(calls.on_gradient)  # type: ignore[no-untyped-call]
            for weight in steps.model.parameters()
            if weight.requires_grad
        ]
        before = _Calls(calls)
        if self._beside is not None:
            for passed in replace(workload, batch=items).passes_beside():
                self._beside.step(precision, passed, counted=False, watch=before.on_op)
        try:
            simulated = steps.step(precision, items, counted=False, watch=calls.on_op)
        finally:
            for hook in hooks:
                hook.remove()
        return StepWork(
            workload=workload.name,
            phase=steps.phase,
            precision=precision,
            batch=simulated.items * updates,
            item=workload.item_of(steps.phase),
            ops=tuple(calls.ops.values()),
            sequence=tuple(before.sequence) + tuple(calls.sequence) * updates,
            gradients=calls.of_last(updates, len(before.sequence)),
            parameters=simulated.parameters,
            weight_bytes=simulated.weight_bytes,
            peak_bytes=peak_bytes(workload, steps.phase, simulated),
            gpu=steps.gpu,
            updates=updates if steps.phase == "train" else 0,
            left_out=tuple(simulated.left_out),
        )


class _Calls:
    """Notes op calls as they come; equal ones are looked at once."""

    def __init__(self, known: _Calls | None = None) -> None:
        """Of another part of the same step, where there is one: they number their ops together."""
        self.ops: dict[tuple[str, str], OpWork] = {} if known is None else known.ops
        self.sequence: list[int] = []
        self.gradients: list[GradientReady] = []
        self._numbers: dict[tuple[str, str], int] = {} if known is None else known._numbers

    def on_op(self, part: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if func.namespace == "profiler":
            return  # marks, which do nothing
        spec = encode(func, args, kwargs)
        key = part, spec
        if key not in self.ops:
            self._numbers[key] = len(self.ops)
            self.ops[key] = _work(part, spec, func, args, kwargs)
        self.sequence.append(self._numbers[key])

    def on_gradient(self, weight: Tensor) -> None:
        assert weight.grad is not None, "called when it is there"
        size = sum(part.nbytes for part in parts_of(weight.grad))
        self.gradients.append(GradientReady(len(self.sequence), size))

    def of_last(self, updates: int, earlier: int) -> tuple[GradientReady, ...]:
        """Of the last of several updates: those before have their own all-reduce, behind the compute that follows."""
        before = earlier + (updates - 1) * len(self.sequence)
        return tuple(GradientReady(before + each.after, each.size_bytes) for each in self.gradients)


def _work(part: str, spec: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpWork:
    call = call_of(func, args, kwargs)
    counted = cost(call) if func.namespace == "aten" else None
    shapes, dtypes = call.shown()
    return OpWork(
        op=call.op,
        type=type_of(call.op) or leaf_type(call.op),
        part=part,
        shapes=shapes,
        dtypes=dtypes,
        flop=None if counted is None else counted.flop,
        bytes=None if counted is None else counted.bytes,
        spec=spec,
    )
