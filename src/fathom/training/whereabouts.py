"""Which machine a training run is on: a checkpoint keeps it, so that one resumed on another machine is recognised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch

from fathom.core.record import EarlierMachine
from fathom.machine.gpus import gpu_uuid
from fathom.machine.host import fingerprint


@dataclass(frozen=True)
class Whereabouts:
    """The machine and the processor of a run. Times of two that differ are not added up without saying so."""

    name: str
    host_id: str | None
    gpu_uuid: str | None
    identity: tuple[object, ...]  # of the machine

    @classmethod
    def of(cls, device: torch.device) -> Self:
        machine, uuid = fingerprint(device), gpu_uuid(device)
        gpu = machine.gpu(uuid, str(device)) if device.type == "cuda" else None
        return cls(str(gpu.name) if gpu else machine.cpu.label, machine.host_id, uuid, machine.identity)

    @classmethod
    def kept(cls, document: Mapping[str, Any] | None) -> Self | None:
        """That of a checkpoint; one of an older version does not say."""
        return cls(**{**document, "identity": tuple(document["identity"])}) if document else None

    def left_after(self, evaluations: int) -> EarlierMachine:
        return EarlierMachine(name=self.name, host_id=self.host_id, gpu_uuid=self.gpu_uuid, evaluations=evaluations)

    def differs(self, other: Whereabouts) -> bool:
        """The name is for people: cores that are bound vary from run to run."""
        return (self.identity, self.gpu_uuid) != (other.identity, other.gpu_uuid)
