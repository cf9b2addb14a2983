"""fathom collectives: what a message between ranks costs, for each operation and size."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fathom.cli.commands import _series
from fathom.cli.commands._options import MOST_RUNS, Json, Out
from fathom.core.ranks import OPERATIONS
from fathom.experiments import ranks as jobs
from fathom.experiments.checks import check_device
from fathom.experiments.ranks import TIMEOUT_S, Launch
from fathom.experiments.repeat import run_order


def command(
    ranks: Annotated[str, typer.Option(help="Numbers of ranks, such as 2,4,8.")] = "2",
    device: Annotated[str, typer.Option(help="cpu (gloo) or cuda (NCCL, one GPU for each rank).")] = "cpu",
    operations: Annotated[str, typer.Option(help="Operations to time, separated by commas.")] = ",".join(OPERATIONS),
    least: Annotated[int, typer.Option(help="Smallest message in bytes; each next one is four times as large.")] = 1024,
    most: Annotated[int, typer.Option(help="Largest message in bytes.")] = 1 << 26,
    runs: Annotated[int, typer.Option(min=1, max=MOST_RUNS, help="Launches per number of ranks.")] = 3,
    nodes: Annotated[int, typer.Option(help="Machines; the same command runs on each.")] = 1,
    rendezvous: Annotated[str | None, typer.Option(help="Where nodes meet: HOST:PORT of the first one.")] = None,
    timeout: _series.Timeout = TIMEOUT_S,
    out: Out = Path("records"),
    as_json: Json = False,
) -> None:
    """Time all-reduce, all-gather, reduce-scatter, broadcast and send-receive over message sizes.

    Latency, algorithm and bus bandwidth are as nccl-tests defines them; alpha and beta are fitted to them.
    """
    check_device(device)
    launch = Launch(timeout_s=timeout, nodes=nodes, rendezvous=rendezvous)
    specs = jobs.collectives(_series.counts_of(ranks, "--ranks"), device, least, most, operations.split(","), nodes)
    run = jobs.Jobs(launch)
    _series.measure(run_order(specs, runs), out, run, "collectives", "collectives", as_json)
