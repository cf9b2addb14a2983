"""Links calibrated from measured collectives: the records of `fathom collectives`, over message sizes and ranks.

For each algorithm of an operation the times are base + messages x alpha + wire bytes / bandwidth, which is linear in
base, alpha and 1/bandwidth. All three are fitted to all sizes and numbers of ranks at once; the algorithm that explains
the times best is kept, with its errors.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from fathom.analysis.alpha_beta import RELATIVE_FLOOR
from fathom.analysis.questions.collectives import operations_of
from fathom.core.errors import DataError
from fathom.core.record import Record
from fathom.predict.communication import ALGORITHMS, Link, cost

Times = Mapping[tuple[int, int], float]  # (ranks, message bytes) -> seconds
EQUALLY_GOOD = 0.001  # difference of mean relative errors up to which two algorithms explain the times equally well


@dataclass(frozen=True)
class Calibrated:
    """One operation on one machine. Errors are relative, of the fitted times."""

    machine: str
    backend: str
    operation: str
    algorithm: str
    link: Link
    ranks: tuple[int, ...]
    median_error: float
    largest_error: float
    equally_good: tuple[str, ...]  # other algorithms; on powers of two, tree and recursive doubling are proportional
    extrapolated_error: float | None  # mean, at the most ranks, of a fit without them; None with one number of ranks

    def seconds(self, ranks: int, message_bytes: float) -> float:
        return self.link.seconds(cost(self.operation, self.algorithm, ranks, message_bytes))


def calibrate(records: Sequence[Record]) -> list[Calibrated]:
    """In the order of machines, backends and operations; an operation needs two different sizes or numbers of ranks."""
    groups: dict[tuple[str, str, str], dict[tuple[int, int], float]] = defaultdict(dict)
    for each in operations_of([record for record in records if record.spec.kind == "collectives"]):
        if each.name in ALGORITHMS and each.ranks > 1:
            for size, interval in each.latency_s.items():
                groups[each.machine, each.backend, each.name][each.ranks, size] = interval.median
    found = [calibrated(*where, times) for where, times in groups.items() if len(times) > 1]
    if not found:
        raise DataError("no collectives of at least 2 ranks among these records; run `fathom collectives`")
    return found


def calibrated(machine: str, backend: str, operation: str, times: Times) -> Calibrated:
    """Of equally good algorithms the first of the list: for all operations but broadcast, the ring."""
    links = {name: fit(operation, name, times) for name in ALGORITHMS[operation]}
    means = {name: sum(errors(operation, name, link, times)) / len(times) for name, link in links.items()}
    algorithm, *others = (name for name, mean in means.items() if mean <= min(means.values()) + EQUALLY_GOOD)
    link, wrong = links[algorithm], errors(operation, algorithm, links[algorithm], times)
    return Calibrated(
        machine=machine,
        backend=backend,
        operation=operation,
        algorithm=algorithm,
        link=link,
        ranks=tuple(sorted({ranks for ranks, _ in times})),
        median_error=float(np.median(wrong)),
        largest_error=max(wrong),
        equally_good=tuple(others),
        extrapolated_error=_extrapolated(operation, algorithm, times),
    )


def fit(operation: str, algorithm: str, times: Times) -> Link:
    """Relative errors are minimised, and nothing is negative.

    With one number of ranks every call has as many messages: its time without bytes is then all alpha.
    """
    costs = [cost(operation, algorithm, ranks, size) for ranks, size in times]
    seconds = np.maximum(np.array(list(times.values()), dtype=float), RELATIVE_FLOOR)
    largest = max(each.wire_bytes for each in costs) or 1.0
    columns = [[each.messages for each in costs], [each.wire_bytes / largest for each in costs]]
    if len({each.messages for each in costs}) > 1:
        columns.append([1] * len(costs))
    matrix = np.array(columns, dtype=float).T / seconds[:, None]
    solved, _ = nnls(matrix, np.ones(len(seconds)))
    alpha, beta, base = (*map(float, solved), 0.0)[:3]
    return Link(alpha, largest / beta if beta else math.inf, base)


def errors(operation: str, algorithm: str, link: Link, times: Times) -> list[float]:
    return [
        abs(link.seconds(cost(operation, algorithm, ranks, size)) / max(took, RELATIVE_FLOOR) - 1)
        for (ranks, size), took in times.items()
    ]


def _extrapolated(operation: str, algorithm: str, times: Times) -> float | None:
    """How far the times of the most ranks are from what fewer ranks predict."""
    most = max(ranks for ranks, _ in times)
    fewer = {key: value for key, value in times.items() if key[0] < most}
    if len(fewer) < 2:
        return None
    link = fit(operation, algorithm, fewer)
    wrong = errors(operation, algorithm, link, {key: value for key, value in times.items() if key[0] == most})
    return sum(wrong) / len(wrong)
