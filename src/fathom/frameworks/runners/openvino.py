"""OpenVINO on the CPU: inference of the PyTorch module, converted in the same process."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fathom.frameworks.framework import Framework, Step, Work, torch_module
from fathom.frameworks.runners.torch import torch_threads

FLOAT32 = "f32"  # on CPUs with half-precision units OpenVINO would otherwise compute in bf16 or f16


class OpenVino(Framework):
    title: ClassVar[str] = "OpenVINO"
    requires: ClassVar[tuple[str, ...]] = ("openvino", "torch")
    extra: ClassVar[str | None] = "openvino"
    phases: ClassVar[tuple[str, ...]] = ("infer",)

    def start(self, threads: int) -> dict[str, str]:
        torch_threads(threads)  # torch is traced here, and then has nothing to do
        import openvino  # noqa: F401

        return {}

    def build(self, work: Work, threads: int) -> tuple[Step, dict[str, str]]:
        import openvino
        import torch

        inputs = work.inputs
        model = openvino.convert_model(torch_module(work), example_input=torch.from_numpy(inputs))
        wanted = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": FLOAT32,
        }
        compiled = openvino.Core().compile_model(model, "CPU", wanted)
        request = compiled.create_infer_request()

        def infer() -> np.ndarray:
            logits: np.ndarray = request.infer([inputs], share_inputs=True, share_outputs=True)[0]
            return logits

        return infer, {name: str(compiled.get_property(name)) for name in wanted}
