"""openvino: inference is exported to ONNX at the first step and run by OpenVINO on the CPU, in fp32.

OpenVINO would use bf16 or fp16 where a CPU has instructions for it, without saying so: fp32 is asked for.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import torch

from fathom.core.errors import EngineError
from fathom.data.base import Batch
from fathom.engine.engines._exported import Exported, Run
from fathom.engine.export import Graph, reason
from fathom.workloads.base import Output


class OpenVino(Exported):
    name: ClassVar = "openvino"
    package: ClassVar = "openvino"

    def build(self, graph: Graph) -> Run:
        request = compiled(graph).create_infer_request()

        def run(batch: Batch) -> Output:
            feeds = [tensor.numpy() for tensor in graph.feeds(batch)]
            try:
                arrays = request.infer(feeds, share_inputs=True, share_outputs=False)
            except Exception as error:  # OpenVINO raises RuntimeError, and its bindings what they meet
                raise EngineError(f"engine openvino cannot run this inference: {reason(error)}") from None
            return {name: torch.from_numpy(arrays[number]) for number, name in enumerate(graph.outputs)}

        return run


def compiled(graph: Graph) -> Any:
    """OpenVINO's model with as many threads as torch has."""
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": str(torch.get_num_threads()),
        "ENABLE_CPU_PINNING": "NO",  # it would bind this very thread to a core, and leave it so
    }
    core = _core()
    return core.compile_model(core.read_model(graph.onnx), "CPU", settings)


@functools.cache
def _core() -> Any:
    """One for the process: with the last Core its plugin is unloaded, while threads of it may still be running."""
    import openvino

    return openvino.Core()
