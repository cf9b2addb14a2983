"""Keras 3 on PyTorch."""

from __future__ import annotations

from typing import ClassVar

from fathom.frameworks.runners._keras import KerasFramework
from fathom.frameworks.runners.torch import torch_threads


class KerasTorch(KerasFramework):
    title: ClassVar[str] = "Keras on PyTorch"
    requires: ClassVar[tuple[str, ...]] = ("keras", "torch")
    extra: ClassVar[str | None] = "keras"
    backend: ClassVar[str] = "torch"
    channels_last: ClassVar[bool] = False

    def start(self, threads: int) -> dict[str, str]:
        found = torch_threads(threads)
        import keras  # noqa: F401

        return found
