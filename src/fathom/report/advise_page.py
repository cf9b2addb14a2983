"""The Cookbook's form as one HTML file: data size, epochs, model, accelerator, count, interconnect, batch -> hours.

Steps are predicted beforehand and stand in the page as a table; its script multiplies, and looks up why something
cannot be. The page makes no request of any kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fathom.core.errors import BadOption
from fathom.core.files import replace_whole
from fathom.report.page import HERE, embedded

DIGITS = 5  # significant ones of a time


@dataclass(frozen=True, kw_only=True)
class FormModel:
    name: str
    item: str


@dataclass(frozen=True, kw_only=True)
class FormDevice:
    name: str
    memory_gb: float | None
    tdp_w: float | None
    gpu: bool = True


@dataclass(frozen=True, kw_only=True)
class FormStep:
    """One predicted step; models, devices and the like by name."""

    model: str
    device: str
    count: int
    interconnect: str | None
    batch: int
    items: int  # of a step on one device: several batches where a step makes several updates
    precision: str
    engine: str
    step_s: float
    low_s: float
    high_s: float
    exposed_s: float
    memory_bytes: int
    bound_by: str


@dataclass(frozen=True, kw_only=True)
class FormRefusal:
    """What cannot be, and why; None matches anything."""

    model: str | None
    why: str
    device: str
    precision: str | None = None
    batch: int | None = None
    count: int | None = None
    interconnect: str | None = None


@dataclass(frozen=True, kw_only=True)
class Form:
    """Everything that the page knows."""

    models: Sequence[FormModel]
    devices: Sequence[FormDevice]
    steps: Sequence[FormStep]
    refusals: Sequence[FormRefusal] = ()
    items: float = 1e8
    epochs: float = 10.0
    most: float  # items, or epochs, below which there is an answer
    most_price: float  # likewise
    uncertainty: str = ""
    threads_per_gpu: int = 2
    ram_per_gpu_memory: int = 2
    rules_source: str = ""
    prices: dict[str, float] = field(default_factory=dict)  # of the devices that the user gave one for


def page(form: Form) -> str:
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("advise.html.j2").render(
        form=form,
        style=Markup(_read("style.css") + _read("advise.css")),
        script=Markup(_read("advise.js")),
        table=embedded(table(form)),
    )


def table(form: Form) -> dict[str, object]:
    """As the script reads it: steps as short rows, under the names of their columns."""
    columns = list(FormStep.__dataclass_fields__)
    rounded = {"step_s", "low_s", "high_s", "exposed_s"}
    rows = [
        [float(f"{getattr(step, name):.{DIGITS}g}") if name in rounded else getattr(step, name) for name in columns]
        for step in form.steps
    ]
    plain = {name: value for name, value in asdict(form).items() if name != "steps"}
    return plain | {"columns": columns, "rows": rows}


def write(form: Form, path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_whole(path, page(form))
    except OSError as error:
        raise BadOption(f"cannot write {path}: {error.strerror or error}") from None
    return path


def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
