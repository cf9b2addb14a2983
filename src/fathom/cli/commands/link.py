"""fathom link: how busy several GPUs behind one link can be, from four numbers; nothing is measured."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from fathom.analysis.link import Link
from fathom.cli.commands._options import Json
from fathom.cli.terminal import count, print_facts, print_json, seconds, text
from fathom.core.errors import BadOption

DERIVED = ("transfer_s", "all_transfers_s", "iteration_s", "idle_s", "busy", "gpus_kept_busy", "bytes_per_s_needed")
MOST = 1e15  # of any of them: beyond, no link is meant


def command(
    gpus: Annotated[int, typer.Option(help="GPUs behind the link.")] = 3,
    gigabytes: Annotated[float, typer.Option(help="GB (1e9 bytes) that each GPU needs per iteration.")] = 8.0,
    bandwidth: Annotated[float, typer.Option(help="GB/s of the link; PCI-Express 4.0 x16 has 31.5.")] = 31.5,
    compute: Annotated[float, typer.Option(help="Seconds of computation per iteration.")] = 0.5,
    overlap: Annotated[
        bool, typer.Option("--overlap/--no-overlap", help="Whether data are transferred while a GPU computes.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Calculate how busy several GPUs behind one link can be. The defaults are a worked example for three GPUs.

    Transfers over one link add up: an iteration takes as long as all of them, or as the computation if that is longer.
    """
    for option, value in (("gpus", gpus), ("gigabytes", gigabytes), ("bandwidth", bandwidth), ("compute", compute)):
        if not 0 < value < MOST:
            raise BadOption(f"--{option} must be above 0 and below {MOST:g}, not {value:g}")
    link = Link(
        gpus=gpus,
        bytes_per_gpu=1e9 * gigabytes,
        bytes_per_s=1e9 * bandwidth,
        compute_s=compute,
        overlapped=overlap,
    )
    if as_json:
        print_json(asdict(link) | {name: getattr(link, name) for name in DERIVED})
        return
    needed = link.bytes_per_s_needed
    kept = f"{count(link.gpus_kept_busy, 'GPU')} without waiting" if overlap else "none: each waits for its own data"
    print_facts(
        f"{count(gpus, 'GPU')} behind one link of {text(bandwidth)} GB/s",
        [
            ("transfer to one GPU", f"{link.transfer_s:.6f} s for {text(gigabytes)} GB"),
            ("transfer to all", f"{link.all_transfers_s:.6f} s, one after another"),
            ("iteration", f"{link.iteration_s:.6f} s, of which {seconds(compute)} compute"),
            ("each GPU idles", f"{link.idle_s:.6f} s per iteration"),
            ("each GPU is busy", f"{100 * link.busy:.2f} % of the time, at best"),
            ("this link feeds", kept),
            ("link needed for 100 %", "none does" if needed is None else f"{text(needed / 1e9)} GB/s"),
        ],
    )
