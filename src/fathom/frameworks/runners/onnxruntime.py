"""ONNX Runtime on the CPU: inference of the PyTorch module, exported in the same process."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import ClassVar

from fathom.frameworks.framework import Framework, Step, Work, torch_module
from fathom.frameworks.network import Array
from fathom.frameworks.runners.torch import torch_threads


class OnnxRuntime(Framework):
    title: ClassVar[str] = "ONNX Runtime"
    requires: ClassVar[tuple[str, ...]] = ("onnxruntime", "onnx", "onnxscript", "torch")
    extra: ClassVar[str | None] = "onnxruntime"
    phases: ClassVar[tuple[str, ...]] = ("infer",)

    def start(self, threads: int) -> dict[str, str]:
        torch_threads(threads)  # torch exports here, and then has nothing to do
        import onnxruntime  # noqa: F401

        return {}

    def build(self, work: Work, threads: int) -> tuple[Step, dict[str, str]]:
        import onnxruntime
        import torch

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "network.onnx"
            batch = (torch.from_numpy(work.inputs),)
            torch.onnx.export(torch_module(work), batch, path, dynamo=True, external_data=True, verbose=False)
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        name, inputs = session.get_inputs()[0].name, work.inputs

        def infer() -> Array:
            logits: Array = session.run(None, {name: inputs})[0]
            return logits

        found = session.get_session_options()
        return infer, {
            "intra_op_num_threads": str(found.intra_op_num_threads),
            "inter_op_num_threads": str(found.inter_op_num_threads),
        }
