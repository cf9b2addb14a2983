"""Session: one workload brought to life on one device, with the lifecycle of the 2016 suite: init, setup, run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fathom.core.errors import BadOption, DoesNotFit
from fathom.core.spec import RunSpec
from fathom.data.base import folder_at
from fathom.engine.memory import refuse_what_cannot_fit
from fathom.machine.devices import resolve, set_arithmetic
from fathom.workloads.base import Output, State, Workload, workload_class


class Step:
    """One step as a hook sees it.

    The hook decides when the work happens by calling run(); asking for the loss or the output runs it too,
    and a hook that does neither has the step run right after it returns.
    """

    __slots__ = ("_result", "_state", "_work", "index")

    def __init__(self, index: int, work: Callable[[State], Tensor | Output], state: State) -> None:
        self.index = index
        self._work = work
        self._state = state
        self._result: Tensor | Output | None = None

    def run(self) -> Tensor | Output:
        if self._result is None:
            self._result = self._work(self._state)
        return self._result

    @property
    def loss(self) -> float | None:
        """The training loss (waits for the device); None in inference."""
        result = self.run()
        return float(result) if isinstance(result, Tensor) else None

    @property
    def output(self) -> Output | None:
        """What inference gave, still on the device; None in training."""
        result = self.run()
        return None if isinstance(result, Tensor) else result


class Session:
    """A workload that can be set up and run, and that other tools can be put on."""

    def __init__(self, spec: RunSpec, workload: Workload | None = None) -> None:
        """The workload that the spec names, or one that the caller made himself."""
        self.spec = spec
        self.device = resolve(spec.device, spec.precision)
        self.workload = workload or _named(spec)
        self._state: State | None = None
        self._steps_done = 0

    @property
    def state(self) -> State:
        if self._state is None:
            raise BadOption("call setup() first")
        return self._state

    @property
    def items_per_step(self) -> int:
        return self.workload.items_per_step(self.spec.phase)

    def setup(self) -> Self:
        """Opens the data, builds and initialises the network, and moves it to the device."""
        if self.spec.threads is not None:
            torch.set_num_threads(self.spec.threads)
        set_arithmetic(self.spec.precision, self.workload.algorithms)
        torch.manual_seed(self.spec.seed)
        with self._memory_watched():
            source = self._open_data()
            self.workload = self.workload.fit(source)
            asked = self.spec.batch is not None or "batch" in self.spec.options
            if asked and self.device.type == "cpu":
                refuse_what_cannot_fit(self.workload, self.spec.phase)
            training = self.spec.phase == "train"
            model = self.workload.model().to(self.device).train(training)
            self._state = State(
                model=model,
                device=self.device,
                source=source,
                batches=self.workload.feed(source, self.device, self.spec.seed),
                optimizer=self._optimizer(model) if training else None,
                autocast=self._autocast(),
                seed=self.spec.seed,
            )
            self.workload.begin(self._state)
        return self

    def run(self, steps: int, on_step: Callable[[Step], Any] | None = None) -> list[float] | list[Output]:
        """Runs the steps, each inside the hook where there is one; gives the losses, or the outputs of inference."""
        state = self.state
        work = self.workload.train_step if self.spec.phase == "train" else self.workload.infer_step
        results: list[Any] = []
        with self._memory_watched():
            for _ in range(steps):
                step = Step(self._steps_done, work, state)
                if on_step is not None:
                    on_step(step)
                results.append(step.run())
                self._steps_done += 1
            if self.spec.phase == "infer" or not results:
                return results
            # losses are read at the end and all at once: reading makes the host wait for the device
            losses: list[float] = torch.stack(results).flatten().tolist()
            return losses

    def close(self) -> None:
        """Frees the device and stops background readers and emulators."""
        if self._state is not None and hasattr(self._state.source, "close"):
            self._state.source.close()
        self._state = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_data(self) -> Any:
        if self.spec.data is None:
            return self.workload.synthetic(self.spec.seed)
        folder = folder_at(self.spec.data, self.workload.expects)
        return self.workload.real(folder, "train" if self.spec.phase == "train" else "test")

    def _optimizer(self, model: nn.Module) -> Optimizer:
        try:
            return self.workload.optimizer(model)
        except ValueError as error:  # torch checks what it is given: a negative rate, say
            raise BadOption(f"the optimizer of {self.workload.name}: {error}") from None

    def _autocast(self) -> Callable[[], AbstractContextManager[Any]]:
        if self.spec.precision != "bf16":
            return nullcontext
        return partial(torch.autocast, self.device.type, dtype=torch.bfloat16)

    def _memory_watched(self) -> AbstractContextManager[None]:
        return _MemoryWatch(self.workload.name, self.workload.batch, self.device)


def _named(spec: RunSpec) -> Workload:
    changes = dict(spec.options) | ({} if spec.batch is None else {"batch": spec.batch})
    return workload_class(spec.workload).configured(spec.preset, **changes)


_REFUSALS = ("can't allocate memory", "not enough memory")  # how the CPU allocators word it


class _MemoryWatch(AbstractContextManager[None]):
    """Turns the allocators' many ways of saying no into one line with the batch in it."""

    def __init__(self, name: str, batch: int, device: torch.device) -> None:
        self.message = f"batch {batch} of {name} does not fit in the memory of {device}; try a smaller --batch"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        refused = isinstance(error, MemoryError | torch.OutOfMemoryError) or (
            isinstance(error, RuntimeError) and any(sign in str(error) for sign in _REFUSALS)
        )
        if refused:
            raise DoesNotFit(self.message) from error


def load(workload: str, **options: Any) -> Session:
    """A session from names: load("residual", phase="train", device="cpu", preset="small", batch=8).

    What is no field of a run (RunSpec) is a field of the workload: load("autoenc", latent=2).
    """
    fields = set(RunSpec.__dataclass_fields__)
    spec = {name: value for name, value in options.items() if name in fields}
    own = {name: value for name, value in options.items() if name not in fields}
    return Session(RunSpec(workload=workload, **{**spec, "options": {**spec.get("options", {}), **own}}))
