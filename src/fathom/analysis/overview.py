"""The first lines about a profiled model: its step time, its size, and what it reaches of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fathom.analysis.own_model import peak_in_words
from fathom.analysis.selection import on_gpu, plain_scale, plain_step_s
from fathom.core.formatting import number, prefixed, seconds, size
from fathom.core.record import OpRow, Profile, Record

ALL = 0.995  # of the op time: a count of as much is one of all
PRODUCTS = ("B", "D")  # classes whose FLOP are multiply-accumulates: matrix products, attention and convolutions
TRANSFORM = "FFT"  # in class B, and no product


@dataclass(frozen=True)
class Overview:
    """Per step; None is not known."""

    step_s: float
    unprofiled: bool  # whether step_s is without the profiler
    items_per_s: float | None
    item: str
    parameters: int | None
    forward_macs: float | None  # of products, per item; per step where items are not known
    flop: float | None  # of all ops that have a count
    bytes: float | None
    counted: float  # the part of the op time that has a count of FLOP
    flop_per_s: float | None
    of_compute: float | None  # against a measured matrix product, in the model's precision
    bytes_per_s: float | None
    of_memory: float | None  # against a measured copy
    exposed: float | None  # the part of the step in which only communication ran; None where there was none
    busy: float | None  # the part of the step in which a kernel ran; None on a CPU
    peak_bytes: int | None

    def lines(self, record: Record) -> Iterator[str]:
        """In words, the number first; what is not known is left out."""
        items = f", {number(self.items_per_s)} {self.item}s/s" if self.items_per_s else ""
        how = "unprofiled, median" if self.unprofiled else "profiled, mean: the profiler's own time is in it"
        yield f"step {seconds(self.step_s)} ({how}){items}"
        sizes = []
        if self.parameters is not None:
            sizes.append(f"{prefixed(self.parameters, '').rstrip()} parameters")
        if self.forward_macs:
            per = self.item if self.items_per_s else "step"
            sizes.append(f"{prefixed(self.forward_macs, 'MAC')} forward per {per}")
        if self.flop:
            sizes.append(f"{prefixed(self.flop, 'FLOP')} a step{_of_time(self.counted)}")
        if sizes:
            yield ", ".join(sizes)
        reached = []
        least = "at least " if self.counted < ALL else ""
        if self.flop_per_s:
            reached.append(
                f"{least}{prefixed(self.flop_per_s, 'FLOP/s')}{_of_peak(self.of_compute, 'matrix product', record)}"
            )
        if self.bytes_per_s:
            reached.append(f"{least}{prefixed(self.bytes_per_s, 'B/s')}{_of_peak(self.of_memory, 'copy', record)}")
        if reached:
            yield "over the step: " + "; ".join(reached)
        if self.busy is not None:
            exposed = "" if self.exposed is None else f", {100 * self.exposed:.3g} % with communication alone"
            yield f"GPU busy {100 * self.busy:.3g} % of the step{exposed}"
        if record.profile and record.profile.memory:
            yield peak_in_words(record.profile.memory)
        elif self.peak_bytes:
            yield f"peak memory {size(self.peak_bytes)}"


def overview(record: Record) -> Overview:
    """Of a record that has a profile."""
    profile = record.profile
    assert profile is not None
    step_s = plain_step_s(profile)
    flop, moved, counted = _counts(profile)
    items = record.items_per_step
    return Overview(
        step_s=step_s,
        unprofiled=profile.unprofiled_s is not None,
        items_per_s=items / step_s if items and step_s > 0 else None,
        item=record.item or "item",
        parameters=record.parameters,
        forward_macs=_forward_macs(profile, items),
        flop=flop,
        bytes=moved,
        counted=counted,
        flop_per_s=_rate(flop, step_s),
        of_compute=_share(_rate(flop, step_s), profile.ceiling_flop_per_s),
        bytes_per_s=_rate(moved, step_s),
        of_memory=_share(_rate(moved, step_s), profile.ceiling_bytes_per_s),
        exposed=exposed_communication(profile),
        busy=min(1.0, profile.op_s / step_s) if on_gpu(profile) and step_s > 0 else None,
        peak_bytes=profile.memory.peak_bytes if profile.memory else record.peak_device_bytes or record.peak_host_bytes,
    )


def exposed_communication(profile: Profile) -> float | None:
    """The part of all steps in which communication ran and no computation; None without communication."""
    steps = profile.depth.steps if profile.depth else []
    if not any(step.communication_s for step in steps):
        return None
    return sum(step.exposed_communication_s for step in steps) / sum(step.span_s for step in steps)


def _counts(profile: Profile) -> tuple[float | None, float | None, float]:
    """FLOP and bytes of the ops that have a count, and the part of the op time that FLOP are known of."""
    known = [row for row in profile.rows if row.flop is not None]
    moved = [row.bytes for row in profile.rows if row.bytes is not None]
    total = profile.op_s
    share = sum(profile.seconds(row) for row in known) / total if total else 0.0
    return (sum(row.flop or 0.0 for row in known) or None), (sum(moved) or None), share


def products(profile: Profile) -> list[OpRow]:
    return [row for row in profile.rows if row.group in PRODUCTS and row.type != TRANSFORM]


def _forward_macs(profile: Profile, items: int | None) -> float | None:
    """Of one item, as papers count a network: products alone; not known where one of them is not."""
    counts = [row.flop for row in products(profile) if row.phase == "forward" and row.calls]
    if not counts or any(flop is None for flop in counts):
        return None
    return sum(flop or 0.0 for flop in counts) / 2 / (items or 1)


def _rate(count: float | None, step_s: float) -> float | None:
    return count / step_s if count and step_s > 0 else None


def _share(rate: float | None, ceiling: float | None) -> float | None:
    return rate / ceiling if rate and ceiling else None


def _of_time(share: float) -> str:
    return "" if share >= ALL else f" ({100 * share:.3g} % of the op time is counted)"


def _of_peak(share: float | None, what: str, record: Record) -> str:
    precision = f" in {record.spec.precision}" if what == "matrix product" else ""
    return "" if share is None else f", {100 * share:.3g} % of a measured {what}{precision}"


def type_shares(profile: Profile) -> dict[str, float]:
    """Op type -> its part of the unprofiled step."""
    step_s, scale = plain_step_s(profile), plain_scale(profile)
    shares: dict[str, float] = {}
    for row in profile.rows:
        shares[row.type] = shares.get(row.type, 0.0) + profile.seconds(row) * scale / step_s
    return shares
