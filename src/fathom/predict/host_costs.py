"""What the host does around op calls, and what a step costs beyond its calls timed alone: fitted to whole steps.

Relative errors are minimised. A step that is far off counts less: another program may have run beside it. On a GPU the
costs are those of the host at the fastest speed that it had in the campaign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from fathom.predict.probe import Probe
from fathom.predict.target import HostCosts
from fathom.trace.step_work import BACKWARD, FORWARD, OPTIMIZER

Floats = NDArray[np.float64]
HOST_BOUND = 0.8  # a step whose kernels take less of it than this is paced by the host
PARTS = (FORWARD, BACKWARD, OPTIMIZER)
ENOUGH = 12  # whole steps, to tell the parts from each other
OTHER_OPS = 1.2  # ops over step from which a step did other calls than those timed: a recurrent layer as one
DOUBTED = 0.05  # relative error from which a step counts less
PASSES = 12


def fit_host(probes: Sequence[Probe], gpu: bool) -> HostCosts:
    """Nothing is negative. On a CPU costs are what ops leave of a step; on a GPU all of a step paced by its host."""
    if gpu:
        chosen = known = _at_full_speed([each for each in probes if each.ops_s < HOST_BOUND * each.step_s])
        if len(launched := [each for each in chosen if each.launch_loops is not None and each.loop_s]) >= ENOUGH:
            return _of_launches(launched)
    else:
        chosen = list(probes)
        known = [each for each in probes if each.cold_bytes is not None and each.ops_s < OTHER_OPS * each.step_s]
    return _of_calls_and_steps(known, gpu) if len(known) >= ENOUGH else _of_calls(chosen, gpu)


def _at_full_speed(probes: Sequence[Probe]) -> list[Probe]:
    """Steps paced by the host as they are on its core when that is fastest: others of the machine may halve it."""
    fastest_s = min((each.loop_s for each in probes if each.loop_s), default=0.0)
    return [replace(each, step_s=each.step_s * fastest_s / each.loop_s) if each.loop_s else each for each in probes]


def _of_calls(probes: Sequence[Probe], gpu: bool) -> HostCosts:
    """Of calls, by part where there are enough steps, and of a step."""
    if len(probes) < 2:
        return HostCosts()
    steps, left = _left(probes, gpu)
    counts = _counts(probes)
    if len(probes) < ENOUGH:
        counts = counts.sum(axis=1, keepdims=True)
    matrix = np.hstack([counts, np.ones((len(probes), 1))])
    costs, _ = nnls(matrix / steps[:, None], np.maximum(0.0, left) / steps)
    *each_s, step_s = map(float, costs)
    forward_s, backward_s, optimizer_s = each_s if len(each_s) > 1 else each_s * len(PARTS)
    return HostCosts(forward_s, backward_s, optimizer_s, step_s)


def _of_calls_and_steps(probes: Sequence[Probe], gpu: bool) -> HostCosts:
    """Also of a training step, and on a CPU of bytes that are in no cache.

    Without a cost of training steps, calls of the backward pass and of the optimizer would take it over: too much where
    there are more of them than in the probes.
    """
    steps, left = _left(probes, gpu)
    cold = [0.0 if gpu else each.cold_bytes or 0.0 for each in probes]
    train = [float(each.phase == "train") for each in probes]
    others = np.array([np.ones(len(probes)), train, cold]).T
    return HostCosts(*solved(np.hstack([_counts(probes), others]), left, steps))


def _of_launches(probes: Sequence[Probe]) -> HostCosts:
    """Of launching calls, each as long as it took alone, of a step and of a training step.

    One factor for all parts: with one each, what a training step costs would go to its backward calls, too much for
    networks that have thousands of them.
    """
    rows = [[each.launch_loops or 0.0, 1.0, float(each.phase == "train")] for each in probes]
    steps = np.array([each.step_s for each in probes])
    launch_s_per_loop, step_s, training_s = solved(np.array(rows), steps, steps)
    loop_s = min(each.loop_s or 0.0 for each in probes)
    return HostCosts(step_s=step_s, training_s=training_s, launch_s_per_loop=launch_s_per_loop, loop_s=loop_s)


def solved(matrix: Floats, left: Floats, steps: Floats) -> list[float]:
    """What each column costs: nothing less than zero, errors relative to the steps, far ones counting less."""
    scale = np.where(matrix.any(axis=0), np.abs(matrix).max(axis=0), 1.0)
    weights, found = 1 / steps, np.zeros(matrix.shape[1])
    for _ in range(PASSES):
        found = nnls(matrix / scale * weights[:, None], left * weights)[0] / scale
        off = (matrix @ found - left) / steps
        weights = 1 / steps / np.sqrt(1 + (off / DOUBTED) ** 2)
    return [float(each) for each in found]


def _left(probes: Sequence[Probe], gpu: bool) -> tuple[Floats, Floats]:
    """Steps, and what is the host's of them."""
    steps = np.array([each.step_s for each in probes])
    return steps, steps if gpu else steps - np.array([each.ops_s for each in probes])


def _counts(probes: Sequence[Probe]) -> Floats:
    return np.array([[float(each.calls.get(part, 0)) for part in PARTS] for each in probes])
