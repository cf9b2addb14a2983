"""Our ResNet-34 and VGG-19 beside torchvision's and timm's: one training step each, interleaved in one run.

Run on a GPU, from the root of the checkout: PYTHONPATH=src python benchmarks/peers.py --out FILE.json
Same batch, precision, memory format, loss and optimizer for all; a ratio under 1 means ours is faster. The batch must
be large enough that the GPU is the bound: below about 128 images a bf16 ResNet step measures the host's launches.
A ratio is the median over rounds, each of which times all networks; its 95 % interval holds within this process.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from fathom.analysis.statistics import Interval, median_interval
from fathom.machine.devices import ProcessSettings
from fathom.machine.host import fingerprint
from fathom.workloads.base import workload_class as workload

LAYOUTS = ("channels_last", "contiguous_format")
Make = Callable[[bool], nn.Module]  # given whether the memory format is channels last

NETWORKS: dict[str, dict[str, Make]] = {
    "residual": {
        "fathom": lambda last: workload("residual").configured("paper", channels_last=last).model(),
        "torchvision": lambda _: torchvision.models.resnet34(),
        "timm": lambda _: timm.create_model("resnet34"),
    },
    "vgg": {
        "fathom": lambda last: workload("vgg").configured("paper", channels_last=last).model(),
        "torchvision": lambda _: torchvision.models.vgg19(),
        "timm": lambda _: timm.create_model("vgg19"),
    },
}


class Trainer:
    """One network with its optimizer; step() is a whole update."""

    def __init__(self, make: Make, layout: torch.memory_format, precision: str) -> None:
        self.model = make(layout == torch.channels_last).cuda().to(memory_format=layout).train()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9, weight_decay=1e-4)
        self.half = precision == "bf16"

    def step(self, images: Tensor, labels: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=self.half):
            loss = F.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()

    def seconds(self, images: Tensor, labels: Tensor, steps: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(steps):
            self.step(images, labels)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1000 / steps


def compare(network: str, precision: str, layout_name: str, batch: int, rounds: int, steps: int) -> dict[str, Any]:
    with ProcessSettings(torch.device("cuda"), precision, workload(network).algorithms):
        return _compare(network, precision, layout_name, batch, rounds, steps)


def _compare(network: str, precision: str, layout_name: str, batch: int, rounds: int, steps: int) -> dict[str, Any]:
    layout = getattr(torch, layout_name)
    images = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=layout)
    labels = torch.randint(0, 1000, (batch,), device="cuda")
    trainers = {name: Trainer(make, layout, precision) for name, make in NETWORKS[network].items()}
    for trainer in trainers.values():
        trainer.seconds(images, labels, steps=4)
    times: dict[str, list[float]] = {name: [] for name in trainers}
    order = list(trainers)
    for _ in range(rounds):
        random.shuffle(order)  # no network always follows the same other
        for name in order:
            times[name].append(trainers[name].seconds(images, labels, steps))
    ratios = {name: over(times["fathom"], seconds) for name, seconds in times.items() if name != "fathom"}
    return {
        "network": network, "precision": precision, "layout": layout_name, "batch": batch, "step_s": times,
        "parameters": {name: sum(p.numel() for p in t.model.parameters()) for name, t in trainers.items()},
        "ours_over_theirs": {name: found.median for name, found in ratios.items()},
        "within_this_process": {name: [found.low, found.high] for name, found in ratios.items()},
    }  # fmt: skip


def over(ours: list[float], theirs: list[float]) -> Interval:
    """The median of the rounds' ratios: a drift of the machine cancels from each round."""
    return median_interval([[one / other for one, other in zip(ours, theirs, strict=True)]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    random.seed(0)
    results: list[dict[str, Any]] = []
    for network, precision, layout in itertools.product(NETWORKS, ("fp32", "bf16"), LAYOUTS):
        found = compare(network, precision, layout, arguments.batch, arguments.rounds, arguments.steps)
        results.append(found)
        ratios = ", ".join(
            "{:.3f} of {}'s ({:.3f} to {:.3f})".format(ratio, name, *found["within_this_process"][name])
            for name, ratio in found["ours_over_theirs"].items()
        )
        step = statistics.median(found["step_s"]["fathom"])
        print(f"{network:9} {precision} {layout:18} {step * 1e3:8.2f} ms: {ratios}", flush=True)
        if arguments.out:
            _keep(results, arguments.out)  # after each, so that a run that is cut short leaves what it has
        torch.cuda.empty_cache()
    print(f"worst ratio {max(ratio for found in results for ratio in found['ours_over_theirs'].values()):.3f}")


def _keep(results: list[dict[str, Any]], path: Path) -> None:
    versions = {"torchvision": torchvision.__version__, "timm": timm.__version__}
    document = {"machine": dataclasses.asdict(fingerprint(torch.device("cuda"))), "peers": versions, "results": results}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
