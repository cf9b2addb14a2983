"""What a CUDA graph saves on a device: fitted to inference steps of random networks, in graphs and call by call.

Kernels that are launched one by one start about a microsecond after the one before has ended; those of a graph start
sooner. Training steps are not used: their optimizers launch other kernels in a graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fathom.predict.host_costs import solved
from fathom.predict.probe import Probe
from fathom.predict.target import GraphCosts

ENOUGH = 6  # steps in graphs


def fit_graphs(probes: Sequence[Probe]) -> GraphCosts:
    """Neither is negative; zero where too few steps were timed in graphs."""
    known = [(each.ops_s, each.graph_s, each.kernel_calls) for each in probes if each.graph_s and each.kernel_calls]
    if len(known) < ENOUGH:
        return GraphCosts()
    ops_s, graph_s, calls = map(np.array, zip(*known, strict=True))
    matrix = np.stack([calls, -np.ones(len(known))], axis=1)
    return GraphCosts(*solved(matrix, ops_s - graph_s, graph_s))
