"""Fathom's ddp beside a plain hand-written DDP step of the same network, in turns within one job: ratio of step times.

Run from the root of the checkout: PYTHONPATH=src python benchmarks/ddp.py --ranks 2 --out FILE.json
Both have the same network, optimizer, data and batch; the plain one has torch's own all-reduce and measures nothing.
Each turn is some steps of one and then of the other, on all ranks at once; its time is that of the slowest rank. The
ratio is the median over turns, its 95 % interval holds within this job. Below 1.02 is the aim.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fathom.analysis.statistics import median_interval
from fathom.core.heartbeat import END, Heartbeat
from fathom.core.spec import RunSpec
from fathom.experiments.launch import run
from fathom.experiments.rank import heartbeat_path, share_of_cores
from fathom.experiments.ranks import Launch
from fathom.machine.host import fingerprint, topology, usable_cores

TURNS, STEPS, WARM_UP = 15, 5, 3
RESULT = "result.json"


def rank_main(folder: Path) -> None:
    """One rank: both sides, in turns."""
    rank, local_ranks = int(os.environ["RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    job = json.loads((folder / "job.json").read_text())
    os.sched_setaffinity(0, share_of_cores(topology(), rank, local_ranks, job["threads"]))
    os.environ["OMP_NUM_THREADS"] = str(job["threads"])
    heartbeat = Heartbeat(heartbeat_path(folder, rank))
    from fathom.engine.ranks.group import Group

    with Group("cpu", heartbeat, timeout_s=600) as group:
        found = [_compared(name, job["preset"], group) for name in job["names"]]
    if rank == 0:
        (folder / RESULT).write_text(json.dumps(found))
    heartbeat.doing(END)


def _compared(name: str, preset: str, group: Any) -> dict[str, Any]:
    from fathom.engine.ranks.base import Rank, strategy_class
    from fathom.engine.ranks.drag import Drag
    from fathom.engine.ranks.session import RankSession
    from fathom.engine.ranks.timeline import Timeline

    timeline = Timeline(group.device, group.heartbeat, group.ranks)
    spec = RunSpec(workload=name, preset=preset, device="cpu", ranks=group.ranks, strategy="ddp", scaling="weak")
    with RankSession(spec, Rank(group, timeline, Drag()), strategy_class("ddp").configured({})) as session:
        session.setup()
        plain = _plain(session.workload)

        def ours(step: Any) -> None:
            timeline.begin_step()
            step.run()
            timeline.end_step()

        sides = {"fathom": lambda steps: session.run(steps, on_step=ours), "plain": plain}
        times: dict[str, list[float]] = {side: [] for side in sides}
        for turn in range(TURNS + 1):
            order = list(sides) if turn % 2 else list(reversed(sides))
            for side in order:
                group.barrier()
                begun = time.perf_counter()
                sides[side](STEPS if turn else WARM_UP)
                seconds = group.largest((time.perf_counter() - begun) / STEPS)
                if turn:
                    times[side].append(seconds)
    ratio = median_interval([[a / b for a, b in zip(times["fathom"], times["plain"], strict=True)]])
    return {
        "workload": name,
        "preset": preset,
        "ranks": group.ranks,
        "step_s": times,
        "fathom_over_plain": ratio.median,
        "interval_within_this_job": [ratio.low, ratio.high],
    }


def _plain(workload: Any) -> Any:
    """The step as one writes it by hand."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(workload.model().train(), broadcast_buffers=False, gradient_as_bucket_view=True)
    optimizer = workload.optimizer(model.module)
    batches = workload.feed(workload.synthetic(0), torch.device("cpu"), 0)

    def run_steps(steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = workload.loss(model, workload.augment(next(batches)))
            loss.backward()
            if workload.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), workload.clip_norm)
            optimizer.step()
            losses.append(loss.detach())
        return [float(loss) for loss in losses]

    return run_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["alexnet", "vgg", "memnet"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        threads = max(1, usable_cores() // arguments.ranks)
        job = {"names": arguments.names, "preset": arguments.preset, "threads": threads}
        (folder / "job.json").write_text(json.dumps(job))
        run(folder, [sys.executable, __file__, "--rank", str(folder)], arguments.ranks, Launch(timeout_s=600))
        found = json.loads((folder / RESULT).read_text())
    for each in found:
        low, high = each["interval_within_this_job"]
        print(f"{each['workload']:10} {each['fathom_over_plain']:.3f} ({low:.3f} to {high:.3f}) of the plain step time")
    if arguments.out:
        document = {"machine": fingerprint().cpu.name, "cores": usable_cores(), "comparisons": found}
        arguments.out.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(Path(sys.argv[2]))
    else:
        main()
