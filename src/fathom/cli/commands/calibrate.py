"""fathom calibrate: op calls timed on this device over types, shapes and precisions, for fathom predict."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fathom.cli.commands._options import Device, Json, Suite
from fathom.cli.terminal import human, print_facts, print_json, progress_bar
from fathom.core.errors import BadOption, UnknownName
from fathom.core.store import check_writable
from fathom.experiments.checks import check_device, check_threads
from fathom.workloads import catalogue

if TYPE_CHECKING:
    from fathom.predict.campaign import Campaign

PRESETS = {"cpu": "small", "cuda": "paper"}  # that the study runs there
PRECISIONS = ("fp32", "bf16", "fp16")
MOST_MINUTES = 24 * 60


def command(
    device: Device = "auto",
    budget: Annotated[float, typer.Option(help="Minutes to spend; run it again to add more.")] = 5.0,
    precisions: Annotated[
        str | None, typer.Option(help="With commas; default: fp32 on a CPU, fp32 and bf16 on a GPU.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Intra-op threads on a CPU; default: torch's.")] = None,
    suite: Suite = "fathom",
    out: Annotated[Path, typer.Option(help="Folder of calibrations; one file for each device.")] = Path("calibration"),
    as_json: Json = False,
) -> None:
    """Times op calls on this device, one by one: those of the workloads' steps, and of random networks.

    The file holds the times, a few whole steps and the measured ceilings. Started again, it resumes.
    """
    if not 0 < budget <= MOST_MINUTES:
        raise BadOption(f"--budget must be above 0 and at most {MOST_MINUTES} minutes, not {budget:g}")
    check_device(device)
    check_threads(threads)
    names = catalogue.suite(suite)
    check_writable(out / "probe")
    campaign, path = _run(device, budget, precisions, threads, names, out)
    facts = _facts(campaign, path)
    if as_json:
        print_json(facts)
    else:
        print_facts("Calibration", [(name.replace("_", " "), str(value)) for name, value in facts.items()])


def _run(
    device: str, minutes: float, precisions: str | None, threads: int | None, names: list[str], out: Path
) -> tuple[Campaign, Path]:
    import torch

    from fathom.machine.devices import resolve
    from fathom.measure.calibration.run import Runner, begun

    found = resolve(device, "fp32")
    if found.type not in PRESETS:
        raise BadOption(f"fathom calibrate knows cpu and cuda, not {found.type}")
    asked = _precisions(precisions or ("fp32" if found.type == "cpu" else "fp32,bf16"))
    if threads is not None:
        torch.set_num_threads(threads)
    new = begun(found, asked)
    path = out / file_name(new)
    campaign = _continued(path, new)
    with progress_bar() as bar:
        task = bar.add_task("calibrate", total=round(minutes * 60))
        runner = Runner(found, path, minutes * 60, campaign)
        runner.on_progress = lambda what: bar.update(task, completed=round(minutes * 60 - runner.left_s), state=what)
        finished = runner.run([(name, PRESETS[found.type]) for name in names], asked)
    return finished, path


def _precisions(text: str) -> tuple[str, ...]:
    """fp32 is always among them: the host's costs are found with it."""
    found = tuple(dict.fromkeys(["fp32", *text.split(",")]))
    for name in found:
        if name not in PRECISIONS:
            raise UnknownName.among("precision", name, PRECISIONS)
    return found


def file_name(campaign: Campaign) -> str:
    from fathom.predict.campaign import SUFFIX

    threads = "" if campaign.threads is None else f"-{campaign.threads}-threads"
    return re.sub(r"[^A-Za-z0-9]+", "-", campaign.machine).strip("-").lower() + threads + SUFFIX


def _continued(path: Path, new: Campaign) -> Campaign:
    """What the file has already, if another version of torch did not leave it."""
    from fathom.predict.campaign import read

    if not path.exists():
        return new
    old = read(path)
    if old.torch != new.torch:
        raise BadOption(f"{path} was made with torch {old.torch}, this is {new.torch}; another --out keeps both")
    human.print(f"resuming {path}: {len(old.calls)} op calls are there")
    return old


def _facts(campaign: Campaign, path: Path) -> dict[str, object]:
    rates = ", ".join(f"{name} {rate / 1e12:.3g} TFLOP/s" for name, rate in campaign.flop_per_s.items())
    return {
        "file": str(path),
        "machine": campaign.machine,
        "op_calls": len(campaign.calls),
        "not_possible_here": len(campaign.failed),
        "whole_steps": len(campaign.probes),
        "disturbed": "; ".join(campaign.disturbances) or "no",
        "ceilings": f"{rates}, {campaign.bytes_per_s / 1e9:.3g} GB/s",
    }
