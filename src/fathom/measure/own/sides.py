"""A user's module under several settings in one process: each session has a copy of it, and of its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fathom.core.advice import Setting
from fathom.core.errors import BadOption, EngineError
from fathom.core.spec import EAGER, SEPARATOR, RunSpec
from fathom.engine.base import engine_class
from fathom.engine.engines.channels_last import IMAGE_DIMENSIONS
from fathom.engine.replaced import replaced
from fathom.engine.session import Session
from fathom.machine.devices import resolve
from fathom.measure.own.batch import NO_ROWS, items_in, rebuilt
from fathom.measure.own.model import OwnModel, OwnSession, precision_of, prepared
from fathom.measure.own.state import independent_copies
from fathom.measure.own.step import StepSession, check_step, device_of, network_of
from fathom.measure.own.training import Criterion
from fathom.workloads.base import Output

COMPILE, GRAPH, LAYOUT, FUSED = "compile", "cudagraph", "channels_last", "fused"
ENGINES = (COMPILE, f"{COMPILE}{SEPARATOR}{GRAPH}", LAYOUT, FUSED)  # that a module of one's own takes, and combinations


DROPOUTS = tuple(name for name in vars(F) if name.rstrip("123d").endswith("dropout") and not name.startswith("_"))


@contextmanager
def without_dropout() -> Iterator[None]:
    """Dropout, of modules and of functions, gives what it is given."""

    def kept(input: Tensor, *_: Any, **__: Any) -> Tensor:
        return input

    with replaced(F, dict.fromkeys(DROPOUTS, kept)):
        yield


@dataclass(frozen=True, kw_only=True)
class Replayed(OwnModel):
    """A model whose outputs the next replay of its graph writes over: what is kept of a step is a copy."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return super().loss(model, batch).clone()

    def infer(self, model: nn.Module, batch: Any) -> Output:
        return {name: value.clone() for name, value in super().infer(model, batch).items()}


class OwnSides:
    """What a user's function made, from which a session of any setting can be opened."""

    def __init__(self, base: RunSpec, make: Callable[[], Mapping[str, Any]]) -> None:
        """`make` gives the same, made anew, whenever it is called."""
        self.base, self._make, self.made = base, make, dict(make())
        self.model = self.made["model"]
        if not isinstance(self.model, nn.Module):
            return
        asked = precision_of(self.model, self.made.get("batch"), base.precision)
        self.device = resolve(base.device, asked)
        self.items = items_in(self.made.get("batch")) or 1
        self._prepare(self.made)  # lazy layers, once

    def reorders_draws(self, setting: Setting) -> bool:
        """Whether dropout would drop other values: it draws in the order of memory, which another layout changes."""
        return LAYOUT in (setting.engine or "").split(SEPARATOR) and isinstance(self.model, nn.Module)

    def session(self, setting: Setting) -> Session:
        if not isinstance(self.model, nn.Module):
            return self._of_step(setting)
        own = self._copied()
        parts = set((setting.engine or EAGER).split(SEPARATOR))
        module, batch = self._laid_out(own["model"], self._sized(setting.batch), parts)
        engine = FUSED if FUSED in parts else EAGER
        spec = replace(
            self.base,
            engine=engine,
            seed=0,
            precision=precision_of(module, batch, setting.precision or self.base.precision),
            threads=setting.threads or self.base.threads,
        )
        workload = (Replayed if GRAPH in parts else OwnModel)(
            module=self._compiled(module, parts),
            inputs=batch,
            criterion=Criterion.of(own.get("loss"), self.device),
            updated_by=own.get("optimizer"),
            batch=setting.batch or self.items,
        )
        for part in parts & {COMPILE, GRAPH}:
            if (why := engine_class(part).refusal(workload, self.device, spec.phase)) is not None:
                raise EngineError(f"engine {part} {why}")
        return OwnSession(spec, workload)

    def _copied(self) -> dict[str, Any]:
        """A copy of model, optimizer and loss; where a copy would share parts with them, what is made anew."""
        copies = independent_copies(self.model, *(self.made.get(name) for name in ("optimizer", "loss")))
        if copies is not None:
            return dict(zip(("model", "optimizer", "loss"), copies, strict=True))
        own = dict(self._make())
        if own["model"] is self.model:
            raise BadOption("the model cannot be copied, and its function gives the same one again: make a new one")
        self._prepare(own)
        return own

    def _prepare(self, made: Mapping[str, Any]) -> None:
        wants_target = Criterion.of(made.get("loss"), self.device).wants_target
        prepared(made["model"], made.get("batch"), self.device, wants_target)

    def _of_step(self, setting: Setting) -> Session:
        if set(setting.changes) - {"threads"}:
            raise BadOption("a step of your own runs as you wrote it: only its threads can be tried")
        check_step(self.model)
        network = network_of(self.model)
        spec = replace(self.base, source="step", threads=setting.threads or self.base.threads)
        return StepSession(spec, self.model, network, device_of(network, self.base.device))

    def _sized(self, items: int | None) -> Any:
        """The batch with so many items: its rows, again from the first where they do not suffice."""
        batch = self.made.get("batch")
        if items is None:
            return batch
        resized = 0

        def rows(leaf: Any) -> Any:
            nonlocal resized
            if not (isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == self.items):
                return leaf
            resized += 1
            chosen = leaf.detach()[torch.arange(items, device=leaf.device) % self.items]
            return chosen.requires_grad_(leaf.requires_grad)

        sized = rebuilt(batch, rows)
        if not resized:
            raise BadOption(NO_ROWS)
        return sized

    def _laid_out(self, module: nn.Module, batch: Any, parts: set[str]) -> tuple[nn.Module, Any]:
        if LAYOUT not in parts:
            return module, batch
        if not any(weight.dim() == IMAGE_DIMENSIONS for weight in module.parameters()):
            raise EngineError(f"engine {LAYOUT} changes nothing: the model has no convolution over images")

        def laid_out(leaf: Any) -> Any:
            images = isinstance(leaf, Tensor) and leaf.dim() == IMAGE_DIMENSIONS
            return leaf.contiguous(memory_format=torch.channels_last) if images else leaf

        return module.to(memory_format=torch.channels_last), rebuilt(batch, laid_out)  # type: ignore[call-overload]

    def _compiled(self, module: nn.Module, parts: set[str]) -> nn.Module:
        """By torch.compile, with random numbers in eager's order: else no result of a dropout could be compared."""
        if GRAPH in parts and COMPILE not in parts:
            raise EngineError(f"engine {GRAPH} alone is for workloads; a model of your own takes {', '.join(ENGINES)}")
        if COMPILE not in parts:
            return module
        options: dict[str, Any] = {"fallback_random": True} | ({"triton.cudagraphs": True} if GRAPH in parts else {})
        return cast(nn.Module, torch.compile(module, options=options))
