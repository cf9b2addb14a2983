"""fathom energy NAME: joules per item, average and peak power, energy-delay product, over trials and over a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fathom.cli.commands import _capping
from fathom.cli.commands._energy import Rates, document, print_choices, print_measurement, print_op_energy
from fathom.cli.commands._options import Device, Engine, Json, Out, Phase, Precision, Preset, Set, options_of, values_in
from fathom.cli.commands._running import disturbed
from fathom.cli.terminal import count, human, print_json, print_text, progress_bar, seconds, skipped
from fathom.core.errors import BadOption
from fathom.core.events import OnProgress
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store, check_writable, read
from fathom.experiments import energy
from fathom.experiments.checks import check, present
from fathom.machine.host import fingerprint
from fathom.machine.meter import Target, find_hints

NOT_METERED = "not metered"


def command(
    name: Annotated[
        str | None, typer.Argument(help="A workload of `fathom list`, or your own class as package.module:Class.")
    ] = None,
    phase: Phase = "train",
    preset: Preset = "small",
    device: Device = "auto",
    precision: Precision = "fp32",
    engine: Engine = "eager",
    batch: Annotated[int | None, typer.Option(help="Batch size; default: the preset's.")] = None,
    set_: Set = None,
    trials: Annotated[int, typer.Option(min=1, help="Runs of each setting, each in its own process.")] = 3,
    idle: Annotated[float, typer.Option(help="Seconds of the idle baseline before each trial; 0 for none.")] = 5.0,
    window: Annotated[
        float | None, typer.Option(help="Least seconds of metered steps; default: what a valid window needs.")
    ] = None,
    warmup: Annotated[int, typer.Option(help="Warm-up steps, before those of a second that set the step time.")] = 2,
    period: Annotated[float | None, typer.Option(help="Seconds between samples of the meters; default: 0.05.")] = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Estimate CPU power where nothing meters it; marked as an estimate.")
    ] = False,
    batches: Annotated[str | None, typer.Option(help="Sweep over batch sizes, such as 1,8,64.")] = None,
    precisions: Annotated[str | None, typer.Option(help="Sweep over precisions, such as fp32,bf16.")] = None,
    engines: Annotated[str | None, typer.Option(help="Sweep over engines, such as eager,cudagraph.")] = None,
    power_caps: Annotated[
        str | None, typer.Option(help="Sweep over power caps in watts, such as 300,400; a dry run by default.")
    ] = None,
    clock_caps: Annotated[
        str | None, typer.Option(help="Sweep over clock caps in MHz, such as 900,1200; a dry run by default.")
    ] = None,
    allow_capping: Annotated[
        bool, typer.Option("--allow-capping", help="Change the limits that --power-caps and --clock-caps name.")
    ] = False,
    restore: Annotated[
        bool, typer.Option("--restore", help="Restore the limits that a killed capping sweep left changed.")
    ] = False,
    within: Annotated[
        float, typer.Option(min=0, help="Largest loss of speed allowed for a setting, in percent.")
    ] = 5.0,
    profile: Annotated[
        bool, typer.Option("--profile/--no-profile", help="Also profile each setting, for joules by op class.")
    ] = True,
    reference: Annotated[
        list[Path] | None, typer.Option(help="Folders of records to fit the energy model to, in addition to --out.")
    ] = None,
    trace_out: Annotated[
        Path | None, typer.Option(help="Write a Perfetto trace of the first setting, with power and clock tracks.")
    ] = None,
    grams_per_kwh: Annotated[float | None, typer.Option(help="Your grid's grams of CO2 per kWh.")] = None,
    price_per_kwh: Annotated[float | None, typer.Option(help="Your price of a kWh, in any currency.")] = None,
    out: Out = Path("records"),
    as_json: Json = False,
) -> None:
    """Measure the energy of one workload: idle baseline, warm-up, a window long enough to be valid, several trials.

    With --batches, --precisions or --engines, every combination: which costs the fewest joules per item. Caps on
    power and clocks change the machine: without --allow-capping it is only said what would change.
    """
    if restore:
        _capping.restore(as_json)
        return
    if name is None:
        raise BadOption("give a workload of `fathom list`, or --restore")
    base = RunSpec(
        workload=name,
        phase=phase,
        kind="energy",
        preset=preset,
        device=device,
        precision=precision,
        engine=engine,
        batch=batch,
        warmup=warmup,
        idle_s=idle,
        window_s=window,
        period_s=period,
        estimates=estimate,
        options=options_of(set_ or []),
    )
    rates = Rates(grams_per_kwh=grams_per_kwh, price_per_kwh=price_per_kwh)
    found = energy.settings(
        base, _whole(batches), values_in(precisions, "--precisions"), values_in(engines, "--engines")
    )
    for setting in found:
        check(setting.spec)
    if device not in ("auto", "cpu"):
        present(device)
    if trace_out is not None:
        check_writable(trace_out)
    caps = {"power_cap_w": _numbers("--power-caps", power_caps), "clock_cap_mhz": _numbers("--clock-caps", clock_caps)}
    below: list[energy.Setting] | None = []
    if caps := {cap: values for cap, values in caps.items() if values}:
        below = _capping.capped_settings(found, caps, device, allow_capping, as_json)
    if below is None:
        return
    references = read(reference or [], skipped)
    store = Store(out, fingerprint())
    store.check_writable()
    ordered = energy.run_order([*found, *below], trials)
    records = _measured(ordered, store, "trials")
    records += _measured(energy.to_run_again(ordered, records), store, "trials again")
    if profile:
        records += _measured(energy.profiles(found, store), store, "profiles")
    if trace_out is not None:
        energy.write_trace(found[0].spec, trace_out)
        human.print(f"trace: {trace_out}", soft_wrap=True)
    _report(records, [*references, *store.records()], rates, within / 100, out, as_json)
    if any(record.outcome != "ok" for record in records):
        raise typer.Exit(1)


def _measured(ordered: Sequence[energy.Setting], store: Store, job: str) -> list[Record]:
    """One bar for the job and one for the current run; above them, a line for each finished run."""
    records: list[Record] = []
    if not ordered:
        return records
    with progress_bar() as bar:
        whole, current = bar.add_task(job, total=len(ordered)), bar.add_task("")

        def watch(index: int, spec: RunSpec) -> OnProgress:
            bar.update(whole, completed=index)
            bar.reset(current, description=f"{spec.workload} {spec.phase}", total=None)
            return lambda done, total: bar.update(current, completed=done, total=total)

        def on_wait() -> None:
            bar.console.print(f"waiting: another process is measuring into {store.folder}", highlight=False)

        for number, (record, _) in enumerate(energy.run_all(ordered, store, watch, on_wait), start=1):
            records.append(record)
            bar.console.print(f"{number:3} of {len(ordered)}  {_line(record)}", highlight=False)
    return records


def _line(record: Record) -> str:
    """The result of a run in a few words."""
    spec = record.spec
    changed = [str(value) for value in (spec.batch and f"batch {spec.batch}", spec.precision, spec.engine) if value]
    what = f"{spec.workload} {spec.phase} on {record.device}, {', '.join(changed)}"
    if record.outcome != "ok":
        return f"{what}: failed: {record.reason}"
    if spec.kind == "profiled":
        return f"{what}: profiled"
    from fathom.analysis.energy_runs import joules

    steps = count(len(record.step_s), "step")
    if record.energy is None:
        step_s = sum(record.step_s) / len(record.step_s)
        return f"{what}: {NOT_METERED}, {seconds(step_s)} per step, {steps}{disturbed(record)}"
    spent = f"{joules(record.energy.per_step_j)} per step at {record.energy.mean_w:.4g} W, {steps}"
    return f"{what}: {spent}{' (estimated)' if record.energy.estimated else ''}{disturbed(record)}"


def _report(
    records: Sequence[Record], others: Sequence[Record], rates: Rates, slower: float, out: Path, as_json: bool
) -> None:
    from fathom.analysis.energy_runs import metered
    from fathom.analysis.questions._time_energy import found_sweeps

    trials = [record for record in records if record.spec.kind == "energy"]
    found = metered(trials)
    unmetered = sum(record.outcome == "ok" and record.energy is None for record in trials)
    known = list({record.id: record for record in [*others, *records]}.values())
    if as_json:
        made = document(found, found_sweeps(found), known, rates, slower)
        hints = _hints(trials) if unmetered else []
        print_json(made | {"records": str(out), "not_metered": unmetered, "not_found": hints})
        return
    for runs in found:
        print_measurement(runs, rates)
    if unmetered:
        runs_in_words = f"{unmetered} of {count(len(trials), 'run')}"
        print_text(f"{NOT_METERED}: no meter of this machine can be read for {runs_in_words}")
        for hint in _hints(trials):
            print_text(f"  not found: {hint}")
    for sweep in found_sweeps(found):
        print_choices(sweep, slower)
    if found:
        print_op_energy(found, known)
    human.print(f"records: {out}", soft_wrap=True)


def _hints(trials: Sequence[Record]) -> list[str]:
    """What would make more be metered for these runs."""
    uuids = tuple({record.gpu_uuid for record in trials if record.gpu_uuid})
    return find_hints(Target(gpu_uuids=uuids, estimates=any(record.spec.estimates for record in trials)))


def _whole(text: str | None) -> list[int]:
    found = values_in(text, "--batches")
    if wrong := next((name for name in found if not name.isdecimal()), None):
        raise BadOption(f"--batches takes whole numbers such as 1,8,64, not {wrong!r}")
    return [int(name) for name in found]


def _numbers(option: str, text: str | None) -> list[float]:
    try:
        return [float(name) for name in values_in(text, option)]
    except ValueError:
        raise BadOption(f"{option} takes numbers such as 300,400, not {text!r}") from None
