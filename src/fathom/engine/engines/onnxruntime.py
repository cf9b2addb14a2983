"""onnxruntime: inference is exported to ONNX at the first step and run by ONNX Runtime on the CPU, in fp32.

Batches are read where torch keeps them, without a copy. The runtime's threads spin for a while when they wait, as it
does by default: other programs on the same cores are slowed more than by PyTorch's.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from fathom.core.errors import EngineError
from fathom.data.base import Batch
from fathom.engine.engines._exported import Exported, Run
from fathom.engine.export import Graph, reason
from fathom.workloads.base import Output


class OnnxRuntime(Exported):
    name: ClassVar = "onnxruntime"
    package: ClassVar = "onnxruntime"

    def build(self, graph: Graph) -> Run:
        session, names = session_of(graph), list(graph.inputs)

        def run(batch: Batch) -> Output:
            feeds = {name: tensor.numpy() for name, tensor in zip(names, graph.feeds(batch), strict=True)}
            try:
                arrays = session.run(None, feeds)
            except Exception as error:  # the runtime's own classes, which have no common base
                raise EngineError(f"engine onnxruntime cannot run this inference: {reason(error)}") from None
            return {name: torch.from_numpy(array) for name, array in zip(graph.outputs, arrays, strict=True)}

        return run


def session_of(graph: Graph) -> Any:
    """ONNX Runtime's session with as many threads as torch has."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # what goes wrong is raised too
    return onnxruntime.InferenceSession(graph.onnx, options, providers=["CPUExecutionProvider"])
