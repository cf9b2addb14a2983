"""ViT-B/16 and GPT-2 in bf16 on a GPU: what `fathom profile` advises, and what following it gains, in one run.

Run from the root of the checkout: PYTHONPATH=src:tests python benchmarks/advice.py --out FILE.json --records FOLDER
The plain training step is profiled first, by `fathom.profile`. Then the plain step and the step with each advised
change take turns in one process; a ratio is the median over turns, and its interval holds within that process.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from public_models import GPT2, ViTB16
from torch import Tensor, nn
from torch.nn import functional as F

import fathom
from fathom.analysis.actions import actions
from fathom.analysis.statistics import median_interval
from fathom.core.store import Store
from fathom.machine.host import fingerprint

TURNS, SECONDS_A_TURN = 9, 0.7
CHANGES: dict[str, dict[str, Any]] = {  # what an advice asks for
    "plain": {},
    "fused optimizer": {"fused": True},
    "torch.compile with CUDA graphs, fused optimizer": {"compile": {"mode": "reduce-overhead"}, "fused": True},
}


class WithLoss(nn.Module):
    """A network and its cross-entropy against labels."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.network(inputs).flatten(0, -2).float(), labels.flatten())


def vit(batch: int) -> tuple[nn.Module, dict[str, Tensor]]:
    return WithLoss(ViTB16()), {"inputs": torch.randn(batch, 3, 224, 224), "labels": torch.randint(1000, (batch,))}


def gpt2(batch: int) -> tuple[nn.Module, dict[str, Tensor]]:
    tokens = torch.randint(50257, (batch, 1024))
    return WithLoss(GPT2()), {"inputs": tokens, "labels": tokens.roll(-1, 1)}


def step_of(
    make: Callable[[int], tuple[nn.Module, dict[str, Tensor]]], batch: int, change: dict[str, Any]
) -> Callable[[], Tensor]:
    torch.manual_seed(0)
    model, columns = make(batch)
    model, columns = model.cuda().train(), {name: column.cuda() for name, column in columns.items()}
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=change.get("fused"))
    work: Any = torch.compile(model, **change["compile"]) if "compile" in change else model

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss: Tensor = work(**columns)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach().clone()

    return step


def turn(step: Callable[[], Tensor], steps: int) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / steps


def measured(
    name: str, make: Callable[[int], tuple[nn.Module, dict[str, Tensor]]], batch: int, records: Path
) -> dict[str, Any]:
    model, columns = make(batch)
    record = fathom.profile(model, columns, phase="train", device="cuda", precision="bf16", optimizer="adamw")
    Store(records).add(record)
    advised = [str(action) for action in actions(record)]
    print(f"\n{name} batch {batch}\n{record}\n", *advised, sep="\n", flush=True)
    steps = {change: step_of(make, batch, how) for change, how in CHANGES.items()}
    losses = {change: [float(step()) for _ in range(10)] for change, step in steps.items()}
    gc.collect()
    gc.freeze()  # a collector that walks the compilers' objects would slow the steps that launch most
    number = {change: max(1, round(SECONDS_A_TURN / turn(step, 5))) for change, step in steps.items()}
    times: dict[str, list[float]] = {change: [] for change in steps}
    for _ in range(TURNS):
        for change, step in steps.items():
            times[change].append(turn(step, number[change]))
    found: dict[str, Any] = {"model": name, "batch": batch, "advice": advised, "step_s": times, "losses": losses}
    for change in steps:
        ratio = median_interval([[plain / own for plain, own in zip(times["plain"], times[change], strict=True)]])
        found.setdefault("speedup", {})[change] = [ratio.median, ratio.low, ratio.high]
        ms = 1e3 * sorted(times[change])[TURNS // 2]
        times_as_fast = f"{ratio.median:5.2f} ({ratio.low:.2f}-{ratio.high:.2f})"
        print(f"{change:50} {ms:8.3f} ms  {times_as_fast}  loss {losses[change][-1]:.4f}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--records", type=Path, required=True)
    arguments = parser.parse_args()
    found = []
    for name, make, batch in (("ViT-B/16", vit, 64), ("GPT-2", gpt2, 8)):
        found.append(measured(name, make, batch, arguments.records))
        torch.compiler.reset()
        document = {"machine": dataclasses.asdict(fingerprint(torch.device("cuda"))), "results": found}
        arguments.out.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
