"""Fathom's ddp and fsdp beside plain steps of the same network, in turns within one job: ratios of step times.

Run from the root of the checkout: PYTHONPATH=src python benchmarks/ddp.py --ranks 2 --out FILE.json
and, for what DDP and FSDP cost where there is nobody to share with: --ranks 1 --device cuda --preset paper --alone.
All have the same network, optimizer, data and batch. "plain" is a hand-written step with torch's DDP that measures
nothing, "plain fsdp" one with fully_shard, "alone" the same step without either. Each turn is some steps of each, on
all ranks at once; its time is that of the slowest rank. A ratio is the median over turns, its 95 % interval holds
within this job. Fathom's ddp over the plain one, and fsdp over plain fsdp, are to be below 1.02.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fathom.analysis.statistics import median_interval
from fathom.core.heartbeat import END, Heartbeat
from fathom.core.spec import RunSpec
from fathom.experiments.launch import run
from fathom.experiments.rank import heartbeat_path, share_of_cores
from fathom.experiments.ranks import Launch
from fathom.machine.host import fingerprint, topology, usable_cores

TURNS, STEPS, WARM_UP = 40, 5, 3
RESULT = "result.json"
PLAIN, PLAIN_FSDP, ALONE = "plain", "plain fsdp", "alone"
LIKE = {"fsdp": PLAIN_FSDP}  # strategy -> the plain step that it is compared with; others with DDP's


def rank_main(folder: Path) -> None:
    """One rank: all sides, in turns."""
    rank, local_ranks = int(os.environ["RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    job = json.loads((folder / "job.json").read_text())
    os.sched_setaffinity(0, share_of_cores(topology(), rank, local_ranks, job["threads"]))
    os.environ["OMP_NUM_THREADS"] = str(job["threads"])
    heartbeat = Heartbeat(heartbeat_path(folder, rank))
    from fathom.engine.ranks.group import Group

    with Group(job["device"], heartbeat, timeout_s=600) as group:
        found = [_compared(name, job, group) for name in job["names"]]
    if rank == 0:
        (folder / RESULT).write_text(json.dumps(found))
    heartbeat.doing(END)


def _compared(name: str, job: dict[str, Any], group: Any) -> dict[str, Any]:
    spec = RunSpec(workload=name, preset=job["preset"], device=job["device"], precision=job["precision"])
    with contextlib.ExitStack() as open_sessions:
        sides: dict[str, Callable[[int], object]] = {}
        for strategy in job["strategies"]:
            sides[strategy], session = _ours(replace(spec, ranks=group.ranks, strategy=strategy), group, open_sessions)
        likes = {strategy: LIKE.get(strategy, PLAIN) for strategy in job["strategies"]}
        for side in dict.fromkeys([PLAIN, *likes.values(), *[ALONE] * job["alone"]]):
            sides[side] = _by_hand(session, side)
        times = _in_turns(sides, group)
    compared = list(likes.items())
    compared += [(side, ALONE) for side in sides if side != ALONE and job["alone"]]
    return {
        "workload": name,
        "preset": job["preset"],
        "precision": job["precision"],
        "ranks": group.ranks,
        "step_s": times,
        "ratios": {f"{side} over {other}": _ratio(times[side], times[other]) for side, other in compared},
    }


def _in_turns(sides: dict[str, Callable[[int], object]], group: Any) -> dict[str, list[float]]:
    from fathom.machine.clock import wait

    times: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(TURNS + 1):
        for side in list(sides) if turn % 2 else list(reversed(sides)):
            steps = STEPS if turn else WARM_UP
            group.barrier()
            wait(group.device)
            begun = time.perf_counter()
            sides[side](steps)
            wait(group.device)
            seconds = group.largest((time.perf_counter() - begun) / steps)
            if turn:
                times[side].append(seconds)
    return times


def _ratio(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    ratio = median_interval([[a / b for a, b in zip(ours, theirs, strict=True)]])
    return {"median": ratio.median, "interval_within_this_job": [ratio.low, ratio.high]}


def _ours(spec: RunSpec, group: Any, open_sessions: contextlib.ExitStack) -> tuple[Callable[[int], object], Any]:
    from fathom.engine.ranks.base import Rank, strategy_class
    from fathom.engine.ranks.drag import Drag
    from fathom.engine.ranks.session import RankSession
    from fathom.engine.ranks.timeline import Timeline

    timeline = Timeline(group.device, group.heartbeat, group.ranks)
    strategy = strategy_class(spec.strategy or "").configured({})
    session = RankSession(replace(spec, scaling="weak"), Rank(group, timeline, Drag()), strategy)
    open_sessions.enter_context(session).setup()

    def step(each: Any) -> None:
        timeline.begin_step()
        each.run()
        timeline.end_step()

    return lambda steps: session.run(steps, on_step=step), session


def _wrapped(workload: Any, device: Any, side: str) -> tuple[Any, Any]:
    """The network of one side, and its optimizer."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from fathom.engine.ranks.strategies.fsdp import unfuse

    model = workload.model().to(device).train()
    if side == PLAIN_FSDP:
        for weight in model.parameters():
            weight.data = weight.data.contiguous()  # fully_shard takes no other layout
        fully_shard(model)
    optimizer = workload.optimizer(model)
    if side == PLAIN_FSDP:
        unfuse(optimizer)
    if side == PLAIN:
        model = DistributedDataParallel(model, broadcast_buffers=False, gradient_as_bucket_view=True)
    return model, optimizer


def _by_hand(session: Any, side: str) -> Callable[[int], object]:
    """The step as one writes it by hand, in the precision of the session."""
    import torch

    workload, device = session.workload, session.device
    model, optimizer = _wrapped(workload, device, side)
    batches = workload.feed(workload.synthetic(0), device, 0)

    def run_steps(steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=session.spec.precision == "bf16"):
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
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--strategies", default="ddp", help="of Fathom, such as ddp,fsdp")
    parser.add_argument("--alone", action="store_true", help="also the plain step without DDP or FSDP")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        threads = max(1, usable_cores() // arguments.ranks)
        job = {key: getattr(arguments, key) for key in ("names", "preset", "precision", "device", "alone")}
        job |= {"threads": threads, "strategies": arguments.strategies.split(",")}
        (folder / "job.json").write_text(json.dumps(job))
        run(folder, [sys.executable, __file__, "--rank", str(folder)], arguments.ranks, Launch(timeout_s=600))
        found = json.loads((folder / RESULT).read_text())
    for each in found:
        for name, ratio in each["ratios"].items():
            low, high = ratio["interval_within_this_job"]
            print(f"{each['workload']:10} {name:20} {ratio['median']:.3f} ({low:.3f} to {high:.3f})")
    if arguments.out:
        document = {"machine": asdict(fingerprint()), "cores": usable_cores(), "comparisons": found}
        arguments.out.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(Path(sys.argv[2]))
    else:
        main()
