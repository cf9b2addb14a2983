"""Each call from the timed calls nearest to it: a local Gaussian process of log(time / expected time).

Expected is the sum of its terms for a product or convolution (cost_terms.py), the roofline for any other op. On a CPU
the time to map the memory of a large result comes on top.

Nothing is fitted ahead but two numbers for each class of ops: how far a time carries, and how noisy times are. They are
chosen among the timed calls, each predicted without the calls of its own network. A time that its neighbours contradict
counts less: a disturbed call is longer, never shorter.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fathom.predict.call_shape import mapped_bytes, point_of
from fathom.predict.campaign import TimedCall
from fathom.predict.features import group_of
from fathom.predict.predictors.cost_terms import CostTerms
from fathom.predict.predictors.efficiency import LEAST_S, Efficiency, bare_step
from fathom.predict.predictors.roofline import roof_s
from fathom.predict.recurrent import with_backward
from fathom.predict.target import Target
from fathom.trace.step_work import OpWork, StepWork

Floats = NDArray[np.float64]
NEAREST = 48  # calls that a time is predicted from
ENOUGH = 4  # of a kind; with fewer the class efficiency holds
BASE_QUANTILE = 0.1  # of the times of all calls: what a call without work takes, about
LEFT = 0.1  # of a time, when that of mapping its result is subtracted
SPREAD = 0.7  # e-folds that a prediction may go beyond its neighbours, relative to what is expected
SLOPE = 0.005  # prior variance of the change per octave, which carries on beyond the neighbours
LEVEL = 4.0  # prior variance of the level itself
SUSPECT = 2.5  # standard deviations from what its neighbours say, from which a time counts less
PASSES = 3  # of finding such times
TRIED = 50  # calls of a class that its two numbers are chosen with


@dataclass(frozen=True)
class Reach:
    octaves: float = 6.0  # how far a time carries
    noise: float = 0.1  # of log times


REACHES = tuple(Reach(octaves, noise) for octaves in (2.0, 4.0, 8.0, 16.0) for noise in (0.05, 0.15))


_Member = tuple[tuple[float, ...], float, frozenset[str]]  # a point, its value, the networks it occurs in


@dataclass(frozen=True)
class _Kind:
    points: Floats
    values: Floats
    sources: list[frozenset[str]]

    @classmethod
    def of(cls, members: Sequence[_Member]) -> _Kind:
        points, values, sources = zip(*members, strict=True)
        return cls(np.array(points), np.array(values), list(sources))


class Neighbours:
    """Fitted once; then seconds() for any step on the device that the times are of."""

    name = "nearest calls"

    def __init__(self, calls: Sequence[TimedCall], target: Target, precision: str = "fp32") -> None:
        self._step, self._target = bare_step(precision), target
        seconds = [max(each.seconds, LEAST_S) for each in calls]
        self._base_s = float(np.quantile(seconds, BASE_QUANTILE)) if seconds else LEAST_S
        self._bases = _bases(calls) if target.gpu else {}
        self._fallback = Efficiency.fitted([(each.work, each.seconds) for each in calls], target, precision)
        self._s_per_mapped_byte = 0.0 if target.gpu else self._mapping(calls)
        seconds = [self._beside_mapping_s(each) for each in calls]
        self._terms = CostTerms(((each.work, took) for each, took in zip(calls, seconds, strict=True)), target.gpu)
        members: dict[str, list[_Member]] = defaultdict(list)
        for call, took in zip(calls, seconds, strict=True):
            kind, point = point_of(call.work, target.gpu)
            members[kind].append((point, math.log(took / self._expected_s(call.work)), networks_of(call)))
        self._kinds = {kind: _Kind.of(found) for kind, found in members.items()}
        self._reaches = self._chosen(calls)

    def seconds(self, step: StepWork, target: Target) -> list[float]:
        others = self._fallback.seconds(step, target)
        found = [self._one(op, self._reaches.get(group_of(op), Reach())) for op in step.ops]
        return with_backward(step, [one or other for one, other in zip(found, others, strict=True)])

    def _expected_s(self, op: OpWork) -> float:
        found = self._terms.seconds(op)
        base_s = self._bases.get(op.op.removesuffix("_"), self._base_s)
        return roof_s(op, self._step, self._target) + base_s if found is None else found

    def _mapping_s(self, op: OpWork) -> float:
        return self._s_per_mapped_byte * mapped_bytes(op) if self._s_per_mapped_byte else 0.0

    def _beside_mapping_s(self, call: TimedCall) -> float:
        """What a timed call took otherwise."""
        took = max(call.seconds, LEAST_S)
        return max(took - self._mapping_s(call.work), LEFT * took)

    def _mapping(self, calls: Sequence[TimedCall]) -> float:
        """Seconds for each byte of large results: what their calls take beyond the roofline. Some take long for another
        reason, so that the lower quartile counts."""
        beyond = [
            (each.seconds - roof_s(each.work, self._step, self._target)) / size
            for each in calls
            if (size := mapped_bytes(each.work))
        ]
        return max(0.0, float(np.quantile(beyond, 0.25))) if len(beyond) >= ENOUGH else 0.0

    def _one(self, op: OpWork, reach: Reach) -> float | None:
        """Seconds; None where too few calls of its kind are known."""
        near = self._near(op)
        return None if near is None else math.exp(near.value(reach)) * self._expected_s(op) + self._mapping_s(op)

    def _near(self, op: OpWork, without: frozenset[str] = frozenset()) -> Surroundings | None:
        """The nearest calls. `without` names networks that must not help."""
        name, place = point_of(op, self._target.gpu)
        kind = self._kinds.get(name)
        if kind is None:
            return None
        away = kind.points - np.array(place)
        order = np.argsort((away**2).sum(axis=1), kind="stable")[: 4 * NEAREST]
        chosen = [at for at in order if not kind.sources[at] & without][:NEAREST]
        return Surroundings(away[chosen], kind.values[chosen]) if len(chosen) >= ENOUGH else None

    def _chosen(self, calls: Sequence[TimedCall]) -> dict[str, Reach]:
        """For each class of ops the reach with the least error over its longer calls, which most of a step is in."""
        groups: dict[str, list[TimedCall]] = defaultdict(list)
        for each in calls:
            groups[group_of(each.work)].append(each)
        found = {}
        for group, members in groups.items():
            longer = sorted(members, key=lambda each: -each.seconds)[: max(TRIED, len(members) // 2)]
            found[group] = self._best(random.Random(0).sample(longer, min(TRIED, len(longer))))
        return found

    def _best(self, calls: Sequence[TimedCall]) -> Reach:
        """By the mean of absolute log errors, each call predicted without the networks that it occurs in."""
        errors = dict.fromkeys(REACHES, 0.0)
        for each in calls:
            near = self._near(each.work, networks_of(each))
            if near is not None:
                value = math.log(self._beside_mapping_s(each) / self._expected_s(each.work))
                for reach in REACHES:
                    errors[reach] += abs(near.value(reach) - value)
        return min(REACHES, key=lambda reach: errors[reach])


def _bases(calls: Sequence[TimedCall]) -> dict[str, float]:
    """By op: on a GPU the least that its kernels take. Others launch none, so that calls in general tell nothing."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for each in calls:
        seconds[each.work.op.removesuffix("_")].append(max(each.seconds, LEAST_S))
    return {op: float(np.quantile(each, BASE_QUANTILE)) for op, each in seconds.items() if len(each) >= ENOUGH}


def networks_of(call: TimedCall) -> frozenset[str]:
    """The networks that it occurs in, at whatever batch."""
    return frozenset(source.partition("@")[0] for source in call.sources)


class Surroundings:
    """Timed calls around one that is not: their points relative to it, and their values."""

    def __init__(self, away: Floats, values: Floats) -> None:
        self.away, self.values = away, values
        around = np.vstack([away, np.zeros((1, away.shape[1]))])  # the last is the call itself
        self._products = around @ away.T
        lengths = (around**2).sum(axis=1)
        squared = lengths[:, None] + lengths[None, :-1] - 2 * self._products
        self._distances = np.sqrt(np.maximum(squared, 0.0))

    def value(self, reach: Reach) -> float:
        """That of the call in their middle."""
        likeness = self._likeness(reach)
        between, here = likeness[:-1], likeness[-1]
        middle = float(np.median(self.values))
        noise = np.full(len(self.values), reach.noise**2)
        inverse = np.linalg.inv(between + np.diag(noise))
        for _ in range(PASSES):
            weights = inverse @ (self.values - middle)
            off = weights / np.sqrt(np.diag(inverse))  # in deviations from what the others say of each
            if not (suspect := off > SUSPECT).any():
                break
            noise = np.where(suspect, reach.noise**2 * (1 + off**2) ** 2, noise)
            inverse = np.linalg.inv(between + np.diag(noise))
        found = middle + float(here @ inverse @ (self.values - middle))
        return min(max(found, float(self.values.min()) - SPREAD), float(self.values.max()) + SPREAD)

    def _likeness(self, reach: Reach) -> Floats:
        """Matern 5/2 over distances, a linear trend and a level."""
        scaled = self._distances * (math.sqrt(5) / reach.octaves)
        found: Floats = (1 + scaled + scaled**2 / 3) * np.exp(-scaled) + SLOPE * self._products + LEVEL
        return found
