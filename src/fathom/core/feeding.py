"""How batches reach the device, as a setting of a run, and what a run of `fathom feed` measured about it."""

from __future__ import annotations

from dataclasses import dataclass, field

from fathom.core.errors import BadOption

MOST_WORKERS = 1024
MOST_PREFETCHED = 1024  # batches a worker


@dataclass(frozen=True, kw_only=True)
class Feeding:
    """One way of feeding the device. Equal ways are written in one way only: without workers nothing is prefetched."""

    workers: int = 0  # processes that read; 0 reads between the steps, in the process that computes
    prefetch: int = 0  # batches that each of them reads ahead
    pinned: bool = False  # batches in page-locked memory, which the device can copy from by itself
    overlapped: bool = False  # the next batch is copied, on a stream of its own, while the device computes

    def __post_init__(self) -> None:
        for name, most in (("workers", MOST_WORKERS), ("prefetch", MOST_PREFETCHED)):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= most:
                raise BadOption(f"{name} must be a whole number from 0 to {most}, not {value!r}")
        if bool(self.workers) != bool(self.prefetch):
            found = f"{self.workers} and {self.prefetch}"
            raise BadOption(f"workers and prefetch must both be 0 or both be positive, not {found}")

    @property
    def in_flight(self) -> int:
        """Batches that may have been read before they are asked for."""
        return self.workers * self.prefetch + (1 if self.overlapped else 0)

    @property
    def copies(self) -> str:
        """How batches are copied, in words."""
        memory = "pinned" if self.pinned else "pageable"
        return f"{memory}, overlapped" if self.overlapped else memory

    @property
    def readers(self) -> str:
        """Who reads, in words; on a CPU, where nothing is copied, this says all."""
        if not self.workers:
            return "no workers"
        return f"{self.workers} worker{'s' * (self.workers != 1)}, prefetch {self.prefetch}"

    def __str__(self) -> str:
        return f"{self.readers}, {self.copies}"


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """Copies of one size from host to device, one after another."""

    bytes: int
    pinned: bool
    seconds: list[float]  # of each copy, by the device's clock


@dataclass(frozen=True, kw_only=True)
class FeedTimes:
    """Input alone, compute alone and both, measured in one process. The fed steps are the record's step_s."""

    used: Feeding | None  # what was applied; None where the whole set is kept on the device
    input_s: list[float]  # of a batch: read, and copied to the device, which computes nothing
    compute_s: list[float]  # of a step on a batch that stays on the device; half before the fed steps, half after
    wait_s: list[float]  # of each fed step: the device has finished the step before, and this one's batch is not there
    batch_bytes: int
    transfers: list[Transfer] = field(default_factory=list)  # none on a CPU, which has no link
