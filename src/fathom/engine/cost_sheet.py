"""What a network costs before it runs: parameters, MAC and FLOP, memory by precision and optimizer, the largest batch.

Plain typed data. Peak memory includes the workspaces of cuBLAS and cuDNN, as assumed in workspaces.py, and what a
workload keeps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from fathom.core.errors import NotTrainable, first_line
from fathom.engine.simulate import Simulated, Simulation, Work
from fathom.engine.workspaces import workspace_bytes
from fathom.trace.step_work import FORWARD
from fathom.workloads.base import Workload

LONGEST_NOTE = 200  # characters of an error's own text
PRECISIONS = ("fp32", "bf16")  # bf16 is autocast: weights, gradients and optimizer state stay in fp32
AS_IT_IS = "own"  # the precision of a network whose weights are not in fp32
STATES = {"sgd": 0, "sgd with momentum": 1, "adam": 2}  # copies of the weights that an optimizer keeps
MOST_ITEMS = 1 << 24
STRAIGHT = 6  # trials along the line


@dataclass(frozen=True)
class Memory:
    """Device memory of one training step, in bytes."""

    precision: str
    optimizer: str
    weights: int
    gradients: int
    state: int  # of the optimizer
    activations: int  # what forward leaves for backward
    peak: int


@dataclass(frozen=True)
class CostSheet:
    name: str
    item: str
    batch: int
    parameters: int
    weight_bytes: int  # parameters and buffers
    forward: Work  # per item
    training: Work | None  # per item: forward, backward and the optimizer's share; None where it cannot be trained
    memory: list[Memory]
    infer_peak: dict[str, int]  # by precision
    kept_bytes: int  # of the peaks in training: what is kept beside network, optimizer and batch
    largest: dict[tuple[str, str], int] = field(default_factory=dict)  # by phase and precision; 0 for none
    uncounted: list[str] = field(default_factory=list)  # ops without a formula
    notes: list[str] = field(default_factory=list)  # what is left out, and why


def cost_sheet(workload: Workload, memory_bytes: int | None = None) -> CostSheet:
    """The costs of a configuration at its batch, and the largest batch that fits."""
    simulations, steps, notes = dict[str, Simulation](), dict[str, dict[str, Simulated]](), list[str]()
    for phase in ("train", "infer"):
        try:
            simulation = Simulation(workload, phase)
            first = simulation.step()
        except NotTrainable as why:
            notes.append(f"training is not possible: {why}")
            continue
        except RuntimeError as error:
            if not simulations:
                raise
            notes.append(_impossible("inference", error))  # a model that takes gradients in its forward has none there
            continue
        simulations[phase] = simulation
        steps[phase] = {_precisions(simulation.model, first)[0]: first}
    notes += _in_other_precisions(simulations, steps)
    known = next(iter(steps.values()))  # inference tells less: no optimizer, and no ops of the backward pass
    first = next(iter(known.values()))
    kept = workload.kept_bytes("train")
    trained = simulations.get("train")
    own = f"its own ({type(trained.optimizer).__name__})" if trained else ""
    return CostSheet(
        name=workload.name,
        item=workload.item,
        batch=first.items,
        parameters=first.parameters,
        weight_bytes=first.weight_bytes,
        forward=_per_item(first, FORWARD),
        training=_per_item(first) if trained else None,
        memory=[row for each, step in steps.get("train", {}).items() for row in _memory(each, own, step, kept)],
        infer_peak={each: peak_bytes(workload, "infer", step) for each, step in steps.get("infer", {}).items()},
        kept_bytes=kept,
        largest={} if memory_bytes is None else _largest(simulations, tuple(known), memory_bytes),
        uncounted=sorted({op for step in known.values() for op in step.uncounted}),
        notes=[*notes, *first.left_out],
    )


def _in_other_precisions(
    simulations: Mapping[str, Simulation], steps: Mapping[str, dict[str, Simulated]]
) -> Iterator[str]:
    """Adds steps that nobody asked for: what cannot be costs these rows alone, and a note says why."""
    phase, known = next(iter(steps.items()))
    for each in _precisions(simulations[phase].model, next(iter(known.values())))[1:]:
        try:
            found = {phase: simulation.step(each) for phase, simulation in simulations.items()}
        except Exception as error:  # a user's own code: an op without this type
            yield _impossible(each, error)
            continue
        for phase, step in found.items():
            steps[phase][each] = step


def _impossible(what: str, error: Exception) -> str:
    return f"{what} is not possible: {type(error).__name__}: {first_line(error)[:LONGEST_NOTE]}"


def peak_bytes(workload: Workload, phase: str, step: Simulated) -> int:
    """What torch's allocator hands out at most, of a simulated step."""
    return step.step_peak_bytes + workspace_bytes(phase) + workload.kept_bytes(phase)


def _precisions(model: nn.Module, step: Simulated) -> tuple[str, ...]:
    """Autocast is for a network in fp32 that does not cast by itself; another has the one that it computes in."""
    types = {each.dtype for each in model.parameters() if each.is_floating_point()}
    return PRECISIONS if types <= {torch.float32} and not step.own_autocast else (AS_IT_IS,)


def largest_batch(peak: Callable[[int], int], limit: int, start: int) -> int:
    """The most items whose peak is within the limit, up to MOST_ITEMS; 0 where not even one is.

    The peak grows nearly in a straight line: the first trials are where the line through the last two says. Where it
    bends, the interval that they leave is halved.
    """
    fits, fails = 0, MOST_ITEMS + 1
    trial, before = start, (0, 0)
    for number in itertools.count():
        found = peak(trial)
        fits, fails = (trial, fails) if found <= limit else (fits, trial)
        if fails - fits <= 1:
            return fits
        slope = (found - before[1]) / (trial - before[0])
        guess = int(trial + (limit - found) / slope) if slope > 0 else 2 * trial
        before = trial, found
        halved = (fits + fails) // 2 if fails <= MOST_ITEMS else min(4 * fits, MOST_ITEMS)
        trial = min(max(guess, fits + 1), fails - 1) if number < STRAIGHT else halved
    raise AssertionError("unreachable")


def _largest(
    simulations: Mapping[str, Simulation], precisions: tuple[str, ...], limit: int
) -> dict[tuple[str, str], int]:
    def search(steps: Simulation, precision: str) -> int:
        def peak(items: int) -> int:
            return peak_bytes(steps.workload, steps.phase, steps.step(precision, items, counted=False))

        return largest_batch(peak, limit, steps.workload.batch)

    return {(phase, each): search(steps, each) for phase, steps in simulations.items() for each in precisions}


def _per_item(step: Simulated, *parts: str) -> Work:
    chosen = [step.work.get(part, Work()) for part in parts or step.work]
    sums = (sum(w.mac for w in chosen), sum(w.flop for w in chosen), sum(w.bytes for w in chosen))
    return Work(*(each / step.items for each in sums))


def _memory(precision: str, own: str, step: Simulated, kept: int) -> list[Memory]:
    """With the workload's own optimizer, as simulated; with others, fused ones: they only keep more or less state."""
    added = workspace_bytes("train") + kept
    rows = [_row(precision, own, step, step.optimizer_bytes, step.step_peak_bytes + added)]
    for name, copies in STATES.items():
        state = copies * step.trained_bytes
        least = step.weight_bytes + step.batch_bytes + step.gradient_bytes + state
        peak = max(step.peak_bytes - step.optimizer_bytes + state, least) + added
        rows.append(_row(precision, name, step, state, peak))
    return rows


def _row(precision: str, optimizer: str, step: Simulated, state: int, peak: int) -> Memory:
    return Memory(precision, optimizer, step.weight_bytes, step.gradient_bytes, state, step.activation_bytes, peak)
