"""PyTorch, eager: the network as an nn.Module, trained by torch.optim.SGD."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fathom.frameworks.framework import Framework, Step, Work, torch_module


class Torch(Framework):
    title: ClassVar[str] = "PyTorch"
    requires: ClassVar[tuple[str, ...]] = ("torch",)

    def start(self, threads: int) -> dict[str, str]:
        return torch_threads(threads)

    def build(self, work: Work, threads: int) -> tuple[Step, dict[str, str]]:
        import torch
        from torch.nn import functional as F

        module = torch_module(work)
        inputs, labels = torch.from_numpy(work.inputs), torch.from_numpy(work.labels)
        if work.phase == "infer":

            def infer() -> np.ndarray:
                with torch.inference_mode():
                    logits: np.ndarray = module(inputs).numpy()
                return logits

            return infer, {}
        weights = [weight for weight in module.parameters() if weight.requires_grad]
        optimizer = torch.optim.SGD(weights, lr=work.network.learning_rate)

        def train() -> float:
            optimizer.zero_grad()
            logits = module(inputs)
            loss = F.cross_entropy(logits.flatten(0, -2), labels.flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return loss.item()

        return train, {}


def torch_threads(threads: int) -> dict[str, str]:
    """Sets both pools of torch and reads them back; one inter-op thread, as the networks have no parallel branches."""
    import torch

    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    return {
        "torch.get_num_threads": str(torch.get_num_threads()),
        "torch.get_num_interop_threads": str(torch.get_num_interop_threads()),
    }
