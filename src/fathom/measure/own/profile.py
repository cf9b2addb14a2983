"""profile(): a user's own model or step beside the eight, profiled in the same way into the same record."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from fathom.core.errors import BadOption, DoesNotFit, EngineError
from fathom.core.record import Profile, Record
from fathom.core.spec import EAGER, OWN, RunSpec
from fathom.engine.base import engine_class
from fathom.engine.session import Session
from fathom.machine.devices import resolve
from fathom.machine.disturbance import Watch
from fathom.machine.gpus import gpu_uuid
from fathom.machine.host import fingerprint
from fathom.measure.loop import non_finite
from fathom.measure.own.batch import items_in
from fathom.measure.own.model import OwnModel, OwnSession, precision_of, prepared
from fathom.measure.own.state import PutBack, RandomStates, independent_copy
from fathom.measure.own.step import StepSession, check_step, device_of, network_of
from fathom.measure.own.training import Criterion, LossLike, OptimizerLike
from fathom.measure.profiling import computed_in, profiled, traced_to_layers
from fathom.workloads.base import Workload

WARMUP = 3
COMPILED: dict[str, dict[str, Any] | None] = {  # engine -> what torch.compile is asked for
    EAGER: None,
    "compile": {},
    "compile+cudagraph": {"mode": "reduce-overhead"},
}
LONGEST_NAME = 100  # of a model: the file of its record is called after it
Profiler = Callable[[Session], Profile]


def profile(
    model: nn.Module | Workload | Callable[[], Any],
    batch: Any = None,
    *,
    loss: LossLike = None,
    optimizer: OptimizerLike = None,
    phase: str = "train",
    device: str = "auto",
    precision: str | None = None,
    engine: str = EAGER,
    threads: int | None = None,
    trace_out: Path | None = None,
    name: str | None = None,
    in_place: bool = False,
    stacks: bool = False,
) -> Record:
    """The op rows of a model: profile(module, batch), of a ready step: profile(step), or of a workload.

    A module is left as it was; a step, a function without arguments, is run as it is. The batch is a tensor, a tuple or
    list of arguments, a mapping of them by name, or anything else that forward() takes.

    loss is a function of what the model returns, or of that and a target: of a mapping what it has as `labels` or
    `target`, of a tuple its last element. It may be the name of one in torch.nn.functional. Without it the model's own
    loss is trained, or else the mean of its outputs. optimizer is a name of torch.optim, an Optimizer, or a function
    that makes one for a model; the default is SGD. precision bf16 or fp16 is by autocast, for a model in fp32.

    The record carries the name, which is that of the module's class where none is given:

        record = fathom.profile(module, batch, loss="cross_entropy", optimizer="adamw", name="mine")
        print(record)
        fathom.nearest(record)  # which of the paper's eight it is like
        eight = list(fathom.Store("results/h200").records())
        fathom.write_report([record, *eight], Path("report.html"))

    engine compile runs the module through torch.compile, and compile+cudagraph with its CUDA graphs.

    in_place saves the memory of a copy, for a module that is not needed afterwards. stacks adds the time and the host's
    waits by source line.
    """
    profiler = partial(profiled, trace_out=trace_out, memory=True, stacks=stacks)
    asked = RunSpec(
        workload=_file_safe(name or _called(model)),
        phase=phase,
        kind="profiled",
        device=device,
        precision=precision if precision or not isinstance(model, Workload) else "fp32",
        engine=engine,
        threads=threads,
        source="model",
    )
    if isinstance(model, Workload):
        source = "model" if name else "workload"
        return _record(Session(dataclasses.replace(_as_configured(asked, model), source=source), model), profiler)
    spec = dataclasses.replace(asked, preset=OWN, seed=None)
    with RandomStates():
        if isinstance(model, nn.Module):
            return _of_module(spec, model, batch, loss, optimizer, profiler, in_place)
        if engine != EAGER:
            raise BadOption(f"engine {engine} changes a module; a step of your own runs as you wrote it")
        if not callable(model):
            raise BadOption(f"expected a torch module or a function that does one step, not {type(model).__name__}")
        return _of_step(spec, model, batch, profiler)


def _as_configured(spec: RunSpec, workload: Workload) -> RunSpec:
    """With the preset that the workload is nearest to, and the batch and options that tell it from that."""
    told: dict[str, dict[str, Any]] = {}
    for preset in type(workload).presets:
        usual = type(workload).configured(preset)
        names = [field.name for field in dataclasses.fields(workload)]
        told[preset] = {
            each: getattr(workload, each) for each in names if getattr(workload, each) != getattr(usual, each)
        }
    preset = min(told, key=lambda each: len(told[each]))
    return dataclasses.replace(spec, preset=preset, options=told[preset])  # a spec takes the batch out of its options


def _of_module(
    spec: RunSpec,
    module: nn.Module,
    batch: Any,
    loss: LossLike,
    optimizer: OptimizerLike,
    profiler: Profiler,
    in_place: bool,
) -> Record:
    precision = precision_of(module, batch, spec.precision)
    device = resolve(spec.device, precision)
    if spec.engine not in COMPILED:
        raise BadOption(f"engine {spec.engine} is for workloads; a model of your own takes {', '.join(COMPILED)}")
    criterion = Criterion.of(loss, device)
    with ExitStack() as kept:
        if not in_place:
            made = None if isinstance(optimizer, Optimizer) else independent_copy(module)
            if made is None:
                kept.enter_context(PutBack(module, *([optimizer] if isinstance(optimizer, Optimizer) else [])))
            module = made or module
        items = items_in(batch)
        workload = OwnModel(
            module=_executed(prepared(module, batch, device, criterion.wants_target), spec.engine),
            inputs=batch,
            criterion=criterion,
            updated_by=optimizer,
            batch=items or 1,
        )
        if (why := engine_class(spec.engine).refusal(workload, device, spec.phase)) is not None:
            raise EngineError(f"engine {spec.engine} {why}")
        try:
            run = dataclasses.replace(spec, precision=precision, engine=EAGER)  # what is compiled is the module itself
            record = _of_engine(_record(OwnSession(run, workload), profiler), spec.engine)
        except DoesNotFit as error:
            why = f"a step of {spec.workload} does not fit in the memory of {device}; give a smaller batch"
            raise DoesNotFit(why) from error
    return _told_apart(record, items)


def _executed(module: nn.Module, engine: str) -> nn.Module:
    how = COMPILED[engine]
    return module if how is None else cast(nn.Module, torch.compile(module, **how))


def _of_engine(record: Record, engine: str) -> Record:
    """As the engine's own, with the share of its time that layers are known of."""
    if engine == EAGER or record.profile is None:
        return record
    notes = [*record.profile.notes, traced_to_layers(engine, record.profile.rows)]
    profile = dataclasses.replace(record.profile, notes=notes)
    return dataclasses.replace(record, spec=dataclasses.replace(record.spec, engine=engine), profile=profile)


def _of_step(spec: RunSpec, step: Callable[[], Any], batch: Any, profiler: Profiler) -> Record:
    if batch is not None:
        raise BadOption("a step takes no batch: it is a function without arguments")
    check_step(step)
    network = network_of(step)
    session = StepSession(dataclasses.replace(spec, source="step"), step, network, device_of(network, spec.device))
    return _in_its_phase(_told_apart(_record(session, profiler), None))


def _in_its_phase(record: Record) -> Record:
    """A step runs as it is written, whatever was asked for: what it did says whether it trains."""
    phase = record.profile.phase if record.profile else record.spec.phase
    losses = record.losses if phase == "train" else []
    return dataclasses.replace(record, spec=dataclasses.replace(record.spec, phase=phase), losses=losses)


def _record(session: Session, profiler: Profiler) -> Record:
    with session.setup():
        first = session.run(WARMUP)
        watch = Watch(session.device)
        found = profiler(session)
        watch.look()
        last = session.run(1)
        parameters = sum(weight.numel() for weight in session.state.weights)
        training = session.spec.phase == "train"
        machine = fingerprint(session.device)
        precision = computed_in(session.spec.precision, found.rows)
        return Record(
            spec=dataclasses.replace(session.spec, precision=precision),
            machine=machine,
            device=str(session.device),
            gpu_uuid=gpu_uuid(session.device),
            outcome="ok",
            step_s=found.free_step_s or found.plain_step_s,
            losses=_numbers([*first, *last]) if training else [],  # the notes tell of others
            items_per_step=None if isinstance(session, StepSession) else session.items_per_step,
            parameters=parameters or None,
            profile=found,
            disturbance=watch.disturbance(),
            notes=[*_non_finite(first, last), *machine.cpu.quota_notes],
        )


def _non_finite(first: Sequence[Any], last: Sequence[Any]) -> list[str]:
    """Losses or outputs that are no numbers: the times may not be those of a model that works."""
    for when, results in (("in the warm-up", first), ("after profiling", last)):
        if results and isinstance(results[0], float):
            bad = next((each for each in results if not math.isfinite(each)), None)
            problem = None if bad is None else f"the loss is {bad}"
        else:
            problem = non_finite("infer", results) if results else None
        if problem:
            return [f"{problem} {when}: these may not be the times of a model that works"]
    return []


def _told_apart(record: Record, items: int | None) -> Record:
    """With the size of a user's model in the spec: one that has changed since is not averaged with its old self."""
    size = {"batch": items, "parameters": record.parameters}
    options = {name: value for name, value in size.items() if value is not None}
    return dataclasses.replace(record, spec=dataclasses.replace(record.spec, options=options), items_per_step=items)


def _called(model: Any) -> str:
    if isinstance(model, Workload):
        return model.name
    own = getattr(model, "__qualname__", None) if not isinstance(model, nn.Module) else None
    return str(own or type(getattr(model, "_orig_mod", model)).__name__)


def _file_safe(name: str) -> str:
    """A name that can begin the name of a record's file."""
    return name.replace("/", "_").replace("\0", "_")[:LONGEST_NAME]


def _numbers(losses: Sequence[Any]) -> list[float]:
    return [loss for loss in losses if isinstance(loss, float) and math.isfinite(loss)]
