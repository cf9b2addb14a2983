"""Peak GPU memory, predicted without running and measured: every workload, both phases, fp32 and bf16.

    PYTHONPATH=src python benchmarks/memory.py --out memory.json
    PYTHONPATH=src python benchmarks/memory.py --measured memory.json   # predicts again, without a GPU

The measured peak is torch.cuda.max_memory_allocated() of steady steps: after the warm-up, in which cuDNN tries its
algorithms with workspaces of any size (`first_peak` has that). The prediction is that of `fathom cost` and the data
that the run keeps on the device. The largest temporaries that an op takes and gives back are listed with their ops.
"""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fathom.core import plugins
from fathom.core.errors import FathomError
from fathom.core.spec import RunSpec
from fathom.data import imagenet
from fathom.data.base import RESIDENT_BYTES, InMemory
from fathom.engine.cost_sheet import peak_bytes
from fathom.engine.session import Session
from fathom.engine.simulate import Simulation
from fathom.workloads.base import Workload, workload_class

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
    spec = RunSpec(
        workload=name, phase=phase, precision=precision, preset=preset, device="cuda", options=options(name, preset)
    )
    left = torch.cuda.memory_allocated()
    found = measured(spec, algorithms)
    workload = found.pop("workload")
    what = {"name": name, "phase": phase, "precision": precision, "preset": preset, "batch": workload.batch}
    return predicted(what | found | {"left_over": left, "s": time.perf_counter() - began}, workload)


def predicted(row: dict[str, Any], workload: Workload) -> dict[str, Any]:
    """The measured row with today's prediction beside it."""
    step = Simulation(workload, row["phase"]).step(row["precision"], counted=False)
    total = peak_bytes(workload, row["phase"], step) + row["data"]
    return row | {"predicted": total, "error_percent": 100 * (total / row["measured"] - 1)}


def options(name: str, preset: str) -> dict[str, Any]:
    return OPTIONS.get(name, {}) if preset == "paper" else {}


def again(row: dict[str, Any]) -> dict[str, Any]:
    """A row of an earlier file; parts of the prediction that stood in it are left out."""
    if "failed" in row:
        return row
    name, preset = row["name"], row["preset"]
    kept = {key: value for key, value in row.items() if key not in ("step", "workspaces", "kept")}
    return predicted(kept, workload_class(name).configured(preset, **options(name, preset)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=plugins.names("workloads"))
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--algorithms", type=int, default=3, help="that cuDNN tries for each convolution")
    parser.add_argument("--measured", type=Path, help="an earlier --out, whose peaks are predicted again")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.measured:
        earlier = json.loads(arguments.measured.read_text())
        machine, found = earlier["machine"], map(again, earlier["rows"])
    else:
        machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
        machine["cudnn"] = torch.backends.cudnn.version()
        found = measured_rows(arguments)
    rows: list[dict[str, Any]] = []
    print("workload          phase  prec  predicted  measured    error   first  largest temporary (MiB)")
    for each in found:
        rows.append(each)
        show(each)
        if arguments.out:
            arguments.out.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    errors = [abs(each["error_percent"]) for each in rows if "error_percent" in each]
    if errors:
        within = sum(error <= 10 for error in errors)
        middle, most = statistics.median(errors), max(errors)
        print(f"{within} of {len(rows)} within 10 %; median error {middle:.1f} %, largest {most:.1f} %")


def measured_rows(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    imagenet.synthetic = functools.cache(imagenet.synthetic)  # type: ignore[assignment]
    for name, phase, precision in itertools.product(arguments.names, ("train", "infer"), ("fp32", "bf16")):
        try:
            yield row(name, phase, precision, arguments.preset, arguments.algorithms)
        except (FathomError, RuntimeError) as error:
            yield {"name": name, "phase": phase, "precision": precision, "failed": str(error)[:300]}


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
