"""The command line: parse, call, print. Torch is imported only inside the command that needs it."""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fathom import registry
from fathom.errors import BadOption, FathomError, UnknownName
from fathom.record import Record
from fathom.spec import RunSpec
from fathom.store import Store

app = typer.Typer(
    help="Where the time and the energy of deep learning go, on your machine.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)
human = Console(stderr=True)  # people read stderr; stdout is for --json alone, or for the tables asked for

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, everything human on stderr.")]
Preset = Annotated[str, typer.Option(help="tiny (seconds), small (the full network) or paper (published sizes).")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...; auto takes an accelerator where there is one.")]
Out = Annotated[Path, typer.Option(help="Folder of records.")]


@app.command(name="list")
def list_(as_json: Json = False) -> None:
    """The workloads, and what each one is."""
    rows = [_facts(name) for name in registry.names("workloads")]
    if as_json:
        return _print_json(rows)
    table = Table("name", "year", "style", "layers", "task", "dataset", title="Workloads")
    table.add_column("parameters", justify="right")
    for row in rows:
        cells = [str(row[key]) for key in ("name", "year", "style", "layers", "task", "dataset")]
        table.add_row(*cells, f"{row['params']:,}")
    Console().print(table)
    return None


@app.command()
def show(name: Annotated[str, typer.Argument(help="A workload.")], as_json: Json = False) -> None:
    """One workload: its paper, presets and cost."""
    from fathom.cost import cost

    kind = registry.workload(name)
    workload = _full_network(name)
    counted = cost(workload)
    facts = {
        **_facts(name),
        "paper": kind.paper,
        "item": kind.item,
        "data": kind.expects,
        "presets": {preset: dict(fields) for preset, fields in kind.presets.items()},
        "macs_per_item": counted.macs_per_item,
        "train_flop_per_item": counted.train_flop_per_item,
    }
    if as_json:
        return _print_json(facts)
    table = Table(show_header=False, title=name)
    for key, value in facts.items():
        if key != "presets":
            table.add_row(key, f"{value:,}" if isinstance(value, int) and key != "year" else str(value))
    for preset, fields in kind.presets.items():
        table.add_row(f"preset {preset}", ", ".join(f"{key}={value}" for key, value in fields.items()))
    Console().print(table)
    return None


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="A workload.")],
    phase: Annotated[str, typer.Option(help="train or infer.")] = "train",
    preset: Preset = "small",
    device: Device = "auto",
    precision: Annotated[str, typer.Option(help="fp32, tf32 or bf16 (autocast).")] = "fp32",
    batch: Annotated[int | None, typer.Option(help="Items in a batch; the preset's where not given.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads inside an operation.")] = None,
    steps: Annotated[int, typer.Option(help="Timed steps.")] = 10,
    warmup: Annotated[int, typer.Option(help="Steps before the timed ones; kept in the record, apart.")] = 2,
    data: Annotated[str | None, typer.Option(help="Folder of real data, as given or below FATHOM_DATA.")] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same run.")] = 0,
    set_: Annotated[list[str] | None, typer.Option("--set", help="A field of the workload, as name=value.")] = None,
    out: Out = Path("records"),
    as_json: Json = False,
) -> None:
    """Runs one workload and keeps its record."""
    registry.module("workloads", name)
    spec = RunSpec(
        workload=name,
        phase=phase,
        preset=preset,
        device=device,
        precision=precision,
        batch=batch,
        threads=threads,
        warmup=warmup,
        steps=steps,
        data=data,
        seed=seed,
        options=_options(set_ or []),
    )
    record, path = _measure_and_keep(spec, Store(out))
    _print_record(record, path, as_json)
    if record.outcome != "ok":
        raise typer.Exit(1)


@app.command()
def doctor(as_json: Json = False) -> None:
    """This machine: what Fathom can see and use, and what is missing."""
    from fathom.devices import available
    from fathom.machine import fingerprint

    found = {**fingerprint(), "devices": available(), "data": os.environ.get("FATHOM_DATA"), "advice": _advice()}
    if as_json:
        return _print_json(found)
    table = Table(show_header=False, title="This machine")
    for key, value in found.items():
        for label, text in _flattened(key, value):
            table.add_row(label, text)
    Console().print(table)
    return None


def _facts(name: str) -> dict[str, Any]:
    from fathom.cost import parameters

    kind = registry.workload(name)
    keys = ("name", "year", "layers", "style", "task", "dataset")
    return {key: getattr(kind, key) for key in keys} | {"params": parameters(_full_network(name))}


def _full_network(name: str) -> Any:
    return registry.workload(name).configured("small")


def _options(pairs: list[str]) -> dict[str, Any]:
    """name=value pairs; a value is a JSON number or switch where it reads as one, else a word."""
    options = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (name and equals):
            raise BadOption(f"--set takes name=value, not {pair!r}")
        try:
            options[name] = json.loads(text)
        except ValueError:
            options[name] = text
    return options


def _measure_and_keep(spec: RunSpec, store: Store) -> tuple[Record, Path]:
    from fathom.measure import measure

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=human, transient=True, disable=not human.is_terminal) as bar:
        task = bar.add_task(f"{spec.workload} {spec.phase}", total=spec.warmup + spec.steps)
        record = measure(spec, lambda done, total: bar.update(task, completed=done))
    return record, store.add(record)


def _print_record(record: Record, path: Path, as_json: bool) -> None:
    if as_json:
        keys = ("outcome", "reason", "device", "step_s", "warmup_s", "losses", "answers", "items_per_step")
        return _print_json({"record": str(path)} | {key: getattr(record, key) for key in keys})
    table = Table(show_header=False, title=f"{record.spec.workload} {record.spec.phase} on {record.device}")
    for label, text in _summary(record):
        table.add_row(label, text)
    table.add_row("record", str(path))
    Console().print(table)
    return None


def _summary(record: Record) -> list[tuple[str, str]]:
    if record.outcome != "ok":
        return [("outcome", f"failed: {record.reason}")]
    median = statistics.median(record.step_s)
    low, high = min(record.step_s), max(record.step_s)
    rows = [
        ("step", f"{_time(median)} median of {len(record.step_s)} (from {_time(low)} to {_time(high)})"),
        ("throughput", f"{(record.items_per_step or 0) / median:,.1f} items/s, {record.items_per_step} a step"),
        ("setup", _time(record.sections.setup_s or 0)),
    ]
    if record.losses:
        rows.append(("loss", f"{record.losses[0]:.4g} at first, {record.losses[-1]:.4g} at last"))
    rows += [("answer", answer) for answer in record.answers[:2]]
    return rows


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def _advice() -> list[str]:
    from fathom.machine import libraries

    advice = []
    if libraries()["ale-py"] is None:
        advice.append("deepq plays Atari: pip install 'fathom[atari]'")
    if not os.environ.get("FATHOM_DATA"):
        advice.append("data is synthetic unless --data names a folder; FATHOM_DATA may name their parent")
    return advice


def _flattened(key: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [row for inner, item in value.items() for row in _flattened(f"{key} {inner}", item)]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [row for index, item in enumerate(value) for row in _flattened(f"{key} {index}", item)]
    if isinstance(value, list):
        return [(key, ", ".join(map(str, value)) or "none")]
    if key == "memory_bytes" or key.endswith(" memory_bytes"):
        return [(key.removesuffix("_bytes"), f"{value / 2**30:.1f} GiB")]
    return [(key, "not known" if value is None else str(value))]


def _print_json(document: Any) -> None:
    print(json.dumps(document, indent=1))


def main() -> None:
    """Every error a user can put right is one line on stderr and exit code 2."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `fathom list | head` is no error
    try:
        code = app(standalone_mode=False)
    except FathomError as error:
        code = _refuse(str(error))
    except KeyboardInterrupt:
        print("fathom: interrupted", file=sys.stderr)
        code = 130
    except Exception as error:
        code = _refuse(_usage_problem(error))
    sys.exit(code if isinstance(code, int) else 0)


def _usage_problem(error: Exception) -> str:
    """The parser's own errors in one line; anything else is a fault of ours and keeps its traceback."""
    describe = getattr(error, "format_message", None)
    if describe is None:
        raise error
    option, known = getattr(error, "option_name", None), getattr(error, "possibilities", None)
    if option and known:
        return str(UnknownName.among("option", option, known))
    return " ".join(describe().split())


def _refuse(line: str) -> int:
    print(f"fathom: {line}", file=sys.stderr)
    return 2
