"""Framework: how one library takes a number of threads, and a step of a network in it."""

from __future__ import annotations

import abc
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, ClassVar

from fathom.core import plugins
from fathom.core.spec import PHASES
from fathom.frameworks.network import Array, Arrays, Network

if TYPE_CHECKING:
    import torch

Step = Callable[[], float | Array]  # of training its loss; of inference the logits


@dataclass(frozen=True)
class Work:
    """What a cell runs: a network with its weights and one batch, which every step takes again."""

    network: Network
    phase: str
    weights: Arrays
    inputs: Array  # images with channels first, or tokens
    labels: Array


class Framework(abc.ABC):
    """A plug-in of runners/. It imports its library inside its methods, so that listing frameworks costs nothing."""

    title: ClassVar[str]
    requires: ClassVar[tuple[str, ...]]  # modules
    extra: ClassVar[str | None] = None  # of this package, that installs them
    phases: ClassVar[tuple[str, ...]] = PHASES

    def environment(self, threads: int) -> dict[str, str]:
        """Variables to set before the process starts. OpenMP and BLAS libraries read theirs when they are loaded.

        The table is about CPUs: a GPU is hidden from all.
        """
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        return dict.fromkeys(names, str(threads)) | {"CUDA_VISIBLE_DEVICES": "-1"}

    @abc.abstractmethod
    def start(self, threads: int) -> dict[str, str]:
        """Loads the library and limits its threads; returns what it then reports of its settings."""

    @abc.abstractmethod
    def build(self, work: Work, threads: int) -> tuple[Step, dict[str, str]]:
        """The step, ready to be called, and settings that are known only now."""

    @classmethod
    def missing(cls) -> list[str]:
        """The modules that are not installed."""
        return [name for name in cls.requires if importlib.util.find_spec(name) is None]

    @classmethod
    def install_line(cls) -> str:
        what = f"'fathom[{cls.extra}]'" if cls.extra else " ".join(cls.missing())
        return f"not installed: pip install {what}"

    @classmethod
    def versions(cls) -> dict[str, str]:
        found = {}
        packages = metadata.packages_distributions()  # tensorflow may be installed as tensorflow-cpu
        for name in cls.requires:
            for distribution in packages.get(name, [])[:1]:  # none of a module that is no package, such as a test's
                found[name] = metadata.version(distribution)
        return found


def load(name: str) -> type[Framework]:
    return plugins.load_class("frameworks", name, Framework)  # type: ignore[type-abstract]


def torch_module(work: Work) -> torch.nn.Module:
    """The network in PyTorch with the weights of the work, in the mode of its phase."""
    import torch

    module = work.network.torch_module()
    state = {
        f"{layer}.{name}": torch.from_numpy(array)
        for layer, arrays in work.weights.items()
        for name, array in arrays.items()
    }
    found = module.load_state_dict(state, strict=False)
    left = [name for name in found.missing_keys if not name.endswith(("num_batches_tracked", "bias_hh_l0"))]
    if left or found.unexpected_keys:
        raise ValueError(f"weights do not match the module: {[*left, *found.unexpected_keys]}")
    return module.train(work.phase == "train")
