"""Peak GPU memory, predicted without running and measured: every workload, both phases, fp32 and bf16.

    PYTHONPATH=src python benchmarks/memory.py --out memory.json

The measured peak is torch.cuda.max_memory_allocated() of steady steps: after the warm-up, in which cuDNN tries its
algorithms with workspaces of any size (`first_peak` has that). The prediction is the simulated step (live tensors in
blocks of 512 bytes), the data that the run keeps on the device, and cuBLAS's workspaces. Temporaries that an op takes
and gives back, such as cuDNN's workspaces, are not predicted; the largest of them are listed with their ops.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fathom.core import plugins
from fathom.core.errors import FathomError
from fathom.core.spec import RunSpec
from fathom.data import imagenet
from fathom.data.base import RESIDENT_BYTES, InMemory
from fathom.engine.session import Session
from fathom.engine.simulate import Simulation
from fathom.engine.workspaces import workspace_bytes

WARMUP, STEPS = 3, 2
OPTIONS: dict[str, dict[str, Any]] = {"deepq": {"learning_starts": 1_000}}  # what is played first takes no memory
MIB = 1 << 20


class Temporaries(TorchDispatchMode):
    """What each op takes of the allocator and gives back before it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.largest: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = func(*args, **(kwargs or {}))
        taken = torch.cuda.max_memory_allocated() - max(before, torch.cuda.memory_allocated())
        if taken:
            shapes = [tuple(each.shape) for each in args if isinstance(each, torch.Tensor)]
            key = f"{func} {shapes}"
            self.largest[key] = max(self.largest.get(key, 0), taken)
        return result


def measured(spec: RunSpec, algorithms: int) -> dict[str, Any]:
    """Peaks of a session: of its first steps, and of steady ones."""
    free()
    torch.cuda.reset_peak_memory_stats()
    with Session(spec) as session:
        session.setup()
        torch.backends.cudnn.benchmark_limit = algorithms
        session.run(WARMUP)
        torch.cuda.synchronize()
        first = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        session.run(STEPS)
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
        requested = torch.cuda.memory_stats()["requested_bytes.all.peak"]
        with Temporaries() as temporaries:
            session.run(1)
        source = session.state.source
        resident = source.nbytes if isinstance(source, InMemory) and source.nbytes <= RESIDENT_BYTES else 0
        found = {"measured": peak, "requested": requested, "first_peak": first, "data": resident}
        largest = sorted(temporaries.largest.items(), key=lambda pair: -pair[1])[:6]
        return found | {"temporaries": largest, "workload": session.workload}


def free() -> None:
    """Nothing of an earlier run is left, cuBLAS's workspaces included."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def row(name: str, phase: str, precision: str, preset: str, algorithms: int) -> dict[str, Any]:
    began = time.perf_counter()
    given: dict[str, Any] = {"options": OPTIONS.get(name, {})} if preset == "paper" else {}
    spec = RunSpec(workload=name, phase=phase, precision=precision, preset=preset, device="cuda", **given)
    left = torch.cuda.memory_allocated()
    found = measured(spec, algorithms)
    workload = found.pop("workload")
    step = Simulation(workload, phase).step(precision, counted=False)
    library = workspace_bytes(phase, torch.cuda.get_device_capability())
    kept = workload.kept_bytes(phase)
    predicted = step.step_peak_bytes + library + found["data"] + kept
    error = 100 * (predicted / found["measured"] - 1)
    parts = {"step": step.step_peak_bytes, "workspaces": library, "kept": kept, "left_over": left}
    what = {"name": name, "phase": phase, "precision": precision, "preset": preset, "batch": workload.batch}
    return what | {"predicted": predicted, "error_percent": error} | parts | found | {"s": time.perf_counter() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=plugins.names("workloads"))
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--algorithms", type=int, default=3, help="that cuDNN tries for each convolution")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    imagenet.synthetic = functools.cache(imagenet.synthetic)  # type: ignore[assignment]
    machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
    rows: list[dict[str, Any]] = []
    print("workload          phase  prec  predicted  measured    error   first  largest temporary (MiB)")
    for name in arguments.names:
        for phase in ("train", "infer"):
            for precision in ("fp32", "bf16"):
                try:
                    rows.append(row(name, phase, precision, arguments.preset, arguments.algorithms))
                except (FathomError, RuntimeError) as error:
                    rows.append({"name": name, "phase": phase, "precision": precision, "failed": str(error)[:300]})
                show(rows[-1])
                if arguments.out:
                    arguments.out.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    errors = [abs(each["error_percent"]) for each in rows if "error_percent" in each]
    if errors:
        within = sum(error <= 10 for error in errors)
        middle, most = statistics.median(errors), max(errors)
        print(f"{within} of {len(rows)} within 10 %; median error {middle:.1f} %, largest {most:.1f} %")


def show(each: dict[str, Any]) -> None:
    what = f"{each['name']:17} {each['phase']:6} {each['precision']:5}"
    if "failed" in each:
        print(f"{what} failed: {each['failed'].splitlines()[0]}", flush=True)
        return
    sizes = [f"{each[key] / MIB:9,.0f}" for key in ("predicted", "measured")]
    largest = each["temporaries"][0] if each["temporaries"] else ("none", 0)
    tail = f"{each['first_peak'] / MIB:7,.0f}  {largest[1] / MIB:,.0f} {largest[0][:60]}"
    print(f"{what} {sizes[0]} {sizes[1]} {each['error_percent']:+8.1f} {tail}", flush=True)


if __name__ == "__main__":
    main()
