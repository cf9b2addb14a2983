"""Keras 3 on JAX."""

from __future__ import annotations

from typing import ClassVar

from fathom.frameworks.runners._keras import KerasFramework


class KerasJax(KerasFramework):
    """XLA's CPU client has no setting for a number of threads: its pool has one for each CPU of the process's affinity,
    as it is when the client is made. (NPROC would replace that count; it is removed.)
    """

    title: ClassVar[str] = "Keras on JAX"
    requires: ClassVar[tuple[str, ...]] = ("keras", "jax", "jaxlib")
    extra: ClassVar[str | None] = "jax"
    backend: ClassVar[str] = "jax"

    def environment(self, threads: int) -> dict[str, str]:
        return super().environment(threads) | {"JAX_PLATFORMS": "cpu", "NPROC": ""}

    def start(self, threads: int) -> dict[str, str]:
        import os

        import jax
        import keras  # noqa: F401

        return {
            "threads": "not settable: one for each CPU that the process is bound to",
            "affinity": str(len(os.sched_getaffinity(0))),
            "jax_default_matmul_precision": str(jax.config.jax_default_matmul_precision),
        }
