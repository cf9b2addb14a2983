"""fathom cost NAME: parameters, FLOP and memory of a workload or of your own model, counted without running it."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fathom.cli.commands._options import Json, Set, Suite, options_of
from fathom.cli.terminal import count, human, print_facts, print_json, print_table, print_text
from fathom.core.errors import BadOption
from fathom.core.spec import RunSpec
from fathom.experiments.checks import check
from fathom.workloads import catalogue

if TYPE_CHECKING:
    from fathom.engine.cookbook import Count
    from fathom.engine.cost_sheet import CostSheet
    from fathom.engine.simulate import Work

PUBLISHED = "paper"  # the default preset
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
HOUR_S = 3600
MEBI = 1 << 20


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A workload of `fathom list`, your own class as package.module:Class, or package.module:function that "
            "returns a model and a batch (and a loss, and an optimizer). Without a name: the parameters of --suite."
        ),
    ] = None,
    preset: Annotated[str, typer.Option(help="tiny, small or paper (published sizes).")] = PUBLISHED,
    batch: Annotated[int | None, typer.Option(help="Batch size; default: the preset's.")] = None,
    memory: Annotated[
        str | None, typer.Option(help="Device memory, such as 80GB or 141GiB; prints the largest batch that fits.")
    ] = None,
    items: Annotated[
        float | None,
        typer.Option(help="Items per epoch, such as 14e6; prints its FLOP, and the TFLOP/s for one epoch per hour."),
    ] = None,
    suite: Suite = "cookbook",
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Count what a network costs, without running it: parameters, MAC, FLOP, memory, the largest batch."""
    limit = None if memory is None else size_of(memory)
    if items is not None and not 1 <= items < 1e18:
        raise BadOption(f"--items must be 1 or more, not {items:g}")
    if name is None:
        _table(suite, as_json)
        return
    sheet = _sheet(name, preset, batch, limit, options_of(set_ or []))
    if as_json:
        print_json(_document(sheet, items))
        return
    _print(sheet, items, memory)


def size_of(text: str) -> int:
    """Bytes of 80GB, 141 GiB or a plain number."""
    found = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([kmgt]?i?)b?", text.strip().lower())
    nbytes = float(found[1]) * UNITS[found[2]] if found and found[2] in UNITS else 0.0
    if not 1 <= nbytes < 2**60:
        raise BadOption(f"--memory must be a size such as 80GB or 141GiB, not {text[:40]!r}")
    return int(nbytes)


def _sheet(name: str, preset: str, batch: int | None, limit: int | None, options: dict[str, Any]) -> CostSheet:
    if ":" not in name:
        check(RunSpec(workload=name, preset=preset, batch=batch, options=options))
    from fathom.engine.cost_sheet import cost_sheet
    from fathom.measure.own.cost import cost_of_target
    from fathom.workloads.base import Workload, workload_class

    if ":" in name and not _is_workload(name, Workload):
        if batch is not None or options:
            raise BadOption("a model of your own brings its own batch; --batch and --set are for the workloads")
        if preset != PUBLISHED:
            raise BadOption("--preset is for the workloads; a model of your own is made by its function")
        return cost_of_target(name, limit)
    changes = options | ({} if batch is None else {"batch": batch})
    return cost_sheet(workload_class(name).configured(preset, **changes), limit)


def _is_workload(name: str, base: type) -> bool:
    from fathom.measure.own.target import imported

    found = imported(name)
    return isinstance(found, type) and issubclass(found, base)


def _print(sheet: CostSheet, items: float | None, memory: str | None) -> None:
    both = {"forward": sheet.forward} | ({} if sheet.training is None else {"training": sheet.training})
    products = {
        part: f"{_si(work.mac)}MAC = {_si(2 * work.mac)}FLOP in products, per {sheet.item}"
        for part, work in both.items()
    }
    rows = [
        ("parameters", f"{sheet.parameters:,} ({sheet.weight_bytes / MEBI:,.1f} MiB with buffers)"),
        *products.items(),
        ("all arithmetic", ", ".join(f"{_si(work.flop)}FLOP {part}" for part, work in both.items())),
        (
            "arithmetic intensity",
            f"{', '.join(f'{_intensity(work)} {part}' for part, work in both.items())}, FLOP/byte",
        ),
    ]
    print_facts(f"{sheet.name}, {count(sheet.batch, sheet.item)} a step", rows)
    columns = ["precision", "optimizer", "weights", "gradients", "state", "activations", "peak"]
    cells = [[row.precision, row.optimizer, *(_mib(getattr(row, key)) for key in columns[2:])] for row in sheet.memory]
    if cells:
        print_table("Memory of a training step (MiB)", columns, cells)
    if sheet.infer_peak:
        peaks = ", ".join(f"{precision} {_mib(peak):,} MiB" for precision, peak in sheet.infer_peak.items())
        print_text(f"Peak of an inference step: {peaks}")
    from fathom.engine.cost_sheet import MOST_ITEMS

    for (phase, precision), most in sheet.largest.items():
        fits = count(most, sheet.item) if most else f"not even one {sheet.item}"
        fits = f"at least {fits}" if most == MOST_ITEMS else fits
        print_text(f"Largest batch in {memory}, {phase}, {precision}: {fits}")
    if items is not None and sheet.training is not None:
        _print_epoch(sheet.item, epoch_of(sheet.forward, sheet.training, items), items)
    if sheet.uncounted:
        human.print(f"not counted: {', '.join(sheet.uncounted)}", highlight=False)
    for note in sheet.notes:
        human.print(note, highlight=False, markup=False)


def _print_epoch(item: str, epoch: dict[str, float], items: float) -> None:
    print_text(
        f"An epoch of {items:g} {item}s: {epoch['flop']:.2g} FLOP; one an hour takes "
        f"{epoch['tflop_per_s']:.3g} TFLOP/s sustained"
    )
    print_text(
        f"Counted as in the Cookbook, in MAC and as three forward passes: {epoch['cookbook_mac']:.2g} MAC, "
        f"{epoch['cookbook_tmac_per_s']:.3g} TMAC/s"
    )


def epoch_of(forward: Work, training: Work, items: float) -> dict[str, float]:
    """What an epoch computes, and at what rate it takes an hour; then the same by the Cookbook's rule, in MAC."""
    flop, mac = 2 * training.mac * items, 3 * forward.mac * items
    rates = {"tflop_per_s": flop / HOUR_S / 1e12, "cookbook_tmac_per_s": mac / HOUR_S / 1e12}
    return {"flop": flop, "cookbook_mac": mac} | rates


def _table(suite: str, as_json: bool) -> None:
    names = catalogue.suite(suite)
    from fathom.engine.cookbook import counts

    found = counts(names)
    if as_json:
        print_json([dataclasses.asdict(each) | {"as_cookbook": each.as_cookbook} for each in found])
        return
    columns = ["workload", "trainable", "+ running statistics", "+ factors", "+ biases", "= Cookbook's", "GMAC forward"]
    print_table("Parameters, and how the Cookbook counts them", columns, [_count_row(each) for each in found])
    print_text("Caffe counts what batch normalisation keeps: two statistics a channel and one factor a layer.")
    print_text("The Cookbook's column GFLOPs has GMAC: 1 MAC = 2 FLOP.")


def _count_row(each: Count) -> list[Any]:
    same = "" if each.as_cookbook == each.cookbook else f" (the Cookbook says {each.cookbook:,})"
    parts = [each.trainable, each.running_statistics, each.factors, each.biases]
    return [each.workload, *parts, f"{each.as_cookbook:,}{same}", each.mac_per_item / 1e9]


def _document(sheet: CostSheet, items: float | None) -> dict[str, Any]:
    plain = dataclasses.asdict(sheet)
    largest = [
        {"phase": phase, "precision": precision, "items": most} for (phase, precision), most in sheet.largest.items()
    ]
    if items is None or sheet.training is None:
        return plain | {"largest": largest}
    return plain | {"largest": largest, "epoch": epoch_of(sheet.forward, sheet.training, items)}


def _intensity(work: Any) -> str:
    return f"{work.flop / work.bytes:.3g}" if work.bytes else "-"


def _mib(nbytes: int) -> int:
    return round(nbytes / MEBI)


def _si(value: float) -> str:
    """1.13e10 -> "11.3 G"."""
    for power, prefix in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if value >= 10**power:
            return f"{value / 10**power:.4g} {prefix}"
    return f"{value:.4g} "
