"""What the host does around op calls, and what a step costs beyond its calls timed alone: fitted to whole steps.

Relative errors are minimised. A step that is far off counts less: another program may have run beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    known = [each for each in probes if each.cold_bytes is not None and each.ops_s < OTHER_OPS * each.step_s]
    if not gpu and len(known) >= ENOUGH:
        return _timed_alone(known)
    chosen = [each for each in probes if not gpu or each.ops_s < HOST_BOUND * each.step_s]
    if len(chosen) < 2:
        return HostCosts()
    steps = np.array([each.step_s for each in chosen])
    left = steps if gpu else np.maximum(0.0, steps - np.array([each.ops_s for each in chosen]))
    counts = _counts(chosen)
    if len(chosen) < ENOUGH:
        counts = counts.sum(axis=1, keepdims=True)
    solved, _ = nnls(np.hstack([counts, np.ones((len(chosen), 1))]) / steps[:, None], left / steps)
    *each_s, step_s = map(float, solved)
    forward_s, backward_s, optimizer_s = each_s if len(each_s) > 1 else each_s * len(PARTS)
    return HostCosts(forward_s, backward_s, optimizer_s, step_s)


def _timed_alone(probes: Sequence[Probe]) -> HostCosts:
    """Costs of calls by part, of a step, of a training step, and of bytes that are in no cache."""
    steps = np.array([each.step_s for each in probes])
    left = steps - np.array([each.ops_s for each in probes])
    others = [[1.0, float(each.phase == "train"), each.cold_bytes or 0.0] for each in probes]
    matrix = np.hstack([_counts(probes), np.array(others)])
    scale = np.where(matrix.any(axis=0), matrix.max(axis=0), 1.0)
    weights, solved = 1 / steps, np.zeros(matrix.shape[1])
    for _ in range(PASSES):
        solved = nnls(matrix / scale * weights[:, None], left * weights)[0] / scale
        off = (matrix @ solved - left) / steps
        weights = 1 / steps / np.sqrt(1 + (off / DOUBTED) ** 2)
    return HostCosts(*map(float, solved))


def _counts(probes: Sequence[Probe]) -> Floats:
    return np.array([[float(each.calls.get(part, 0)) for part in PARTS] for each in probes])
