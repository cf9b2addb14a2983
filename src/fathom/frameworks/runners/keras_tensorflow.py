"""Keras 3 on TensorFlow."""

from __future__ import annotations

from typing import ClassVar

from fathom.frameworks.runners._keras import KerasFramework


class KerasTensorflow(KerasFramework):
    title: ClassVar[str] = "Keras on TensorFlow"
    requires: ClassVar[tuple[str, ...]] = ("keras", "tensorflow")
    extra: ClassVar[str | None] = "tensorflow"
    backend: ClassVar[str] = "tensorflow"

    def environment(self, threads: int) -> dict[str, str]:
        return super().environment(threads) | {"TF_CPP_MIN_LOG_LEVEL": "2"}

    def start(self, threads: int) -> dict[str, str]:
        """One inter-op thread: with more, ops could run beside each other on more CPUs than asked for."""
        import tensorflow

        threading = tensorflow.config.threading
        threading.set_intra_op_parallelism_threads(threads)
        threading.set_inter_op_parallelism_threads(1)
        import keras  # noqa: F401

        return {
            "intra_op_parallelism_threads": str(threading.get_intra_op_parallelism_threads()),
            "inter_op_parallelism_threads": str(threading.get_inter_op_parallelism_threads()),
        }
