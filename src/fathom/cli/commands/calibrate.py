"""fathom calibrate: op calls timed on this device over types, shapes and precisions, for fathom predict."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
        str | None, typer.Option(help="Such as fp32,bf16; default: fp32 on a CPU, fp32 and bf16 on a GPU.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Intra-op threads on a CPU; default: torch's.")] = None,
    suite: Suite = "fathom",
    out: Annotated[Path, typer.Option(help="Folder to write to; one file per device.")] = Path("calibration"),
    as_json: Json = False,
) -> None:
    """Time single op calls on this device, so that `fathom predict` can predict steps on it.

    The calls are those of the workloads' steps and of random networks. The file holds their times, a few whole steps
    and the measured peaks. Run it again to resume, and to repeat what was timed while the core
    was faster or slower than usual.
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
    from fathom.experiments.calibrate import calibrated
    from fathom.machine.devices import resolve
    from fathom.predict.campaign import read

    found = resolve(device, "fp32")
    if found.type not in PRESETS:
        raise BadOption(f"fathom calibrate knows cpu and cuda, not {found.type}")
    asked = _precisions(precisions or ("fp32" if found.type == "cpu" else "fp32,bf16"))
    seconds, begun = round(minutes * 60), time.monotonic()
    with progress_bar() as bar:
        task = bar.add_task("calibrate", total=seconds)

        def show(event: Mapping[str, Any]) -> None:
            if "resumed" in event:
                human.print(f"resuming {event['file']}: {event['resumed']} op calls are there")
            if "lost" in event:
                human.print(
                    f"a worker process died; another one continues without this call: {event['lost']}", style="yellow"
                )
            if "timing" in event:
                bar.update(task, completed=min(seconds, round(time.monotonic() - begun)), state=event["timing"])

        workloads = [(name, PRESETS[found.type]) for name in names]
        path = calibrated(str(found), minutes * 60, asked, threads, workloads, out, show)
    return read(path), path


def _precisions(text: str) -> tuple[str, ...]:
    """fp32 is always among them: the host's costs are found with it."""
    found = tuple(dict.fromkeys(["fp32", *text.split(",")]))
    for name in found:
        if name not in PRECISIONS:
            raise UnknownName.among("precision", name, PRECISIONS)
    return found


def _facts(campaign: Campaign, path: Path) -> dict[str, object]:
    rates = ", ".join(f"{name} {rate / 1e12:.3g} TFLOP/s" for name, rate in campaign.flop_per_s.items())
    return {
        "file": str(path),
        "machine": campaign.machine,
        "op_calls": len(campaign.calls),
        "timed_at_another_core_speed": campaign.at_other_speed,
        "not_possible_here": len(campaign.failed),
        "whole_steps": len(campaign.probes),
        "disturbed": "; ".join(campaign.disturbances) or "no",
        "ceilings": f"{rates}, {campaign.bytes_per_s / 1e9:.3g} GB/s",
    }
