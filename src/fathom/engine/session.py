"""Session: one workload set up on one device and run, with the lifecycle of the 2016 suite: init, setup, run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fathom.core.errors import BadOption, DoesNotFit, EngineError
from fathom.core.feeding import Feeding
from fathom.core.spec import RunSpec
from fathom.data.base import Batch, feeding, folder_at, notes_of
from fathom.engine.base import Engine, Infer, Loss, clipping, engine_class
from fathom.engine.marks import mark
from fathom.engine.memory import refuse_what_cannot_fit
from fathom.machine.devices import ProcessSettings, resolve
from fathom.workloads.base import Output, State, Workload, workload_class

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}  # precision -> what products are computed in


class Step:
    """One step as a hook sees it.

    The hook decides when the work happens by calling run(); asking for the loss or the output runs it too,
    and a hook that does neither has the step run right after it returns.
    """

    __slots__ = ("_result", "_work", "index")

    def __init__(self, index: int, work: Callable[[], Tensor | Output]) -> None:
        self.index = index
        self._work = work
        self._result: Tensor | Output | None = None

    def run(self) -> Tensor | Output:
        if self._result is None:
            self._result = self._work()
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

    state_is_whole: ClassVar[bool] = True  # what is kept from step to step is in its state

    def __init__(self, spec: RunSpec, workload: Workload | None = None, split: str | None = None) -> None:
        """The workload that the spec names, or one that the caller made himself, on the phase's split or another."""
        self.spec = spec
        self.split = split or ("train" if spec.phase == "train" else "test")
        self.device = resolve(spec.device, spec.precision)
        self.workload = workload or _named(spec)
        self._state: State | None = None
        self._engine: Engine | None = None
        self.fed: Feeding | None = None  # how batches reach the device; None where they are on it, or are made there
        self._settings = ExitStack()  # of the process, put back by close()
        self._steps_done = 0
        self._check_engine()

    @property
    def state(self) -> State:
        if self._state is None:
            raise BadOption("call setup() first")
        return self._state

    @property
    def items_per_step(self) -> int:
        return self.workload.items_per_step(self.spec.phase)

    @property
    def data_notes(self) -> list[str]:
        """What the reader of its data left out, shortened or did not know, for people."""
        return notes_of({"training" if self.split.startswith("train") else self.split: self.state.source})

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise BadOption("call setup() first")
        return self._engine

    def setup(self) -> Self:
        """Opens the data, builds and initialises the network, and moves it to the device."""
        try:
            self._setup()
        except BaseException:
            self.close()
            raise
        return self

    def _setup(self) -> None:
        spec = self.spec
        self._settings.enter_context(ProcessSettings(self.device, spec.precision, self.workload.algorithms))
        if spec.threads is not None:
            torch.set_num_threads(spec.threads)
        if spec.seed is not None:
            torch.manual_seed(spec.seed)
        with self._memory_watched():
            source = self.open_data()
            self.workload = self.workload.fit(source)
            if spec.batch is not None and self.device.type == "cpu":
                refuse_what_cannot_fit(self.workload, spec.phase)
            training = spec.phase == "train"
            model = self.workload.model().to(self.device).train(training)
            self._state = State(
                model=model,
                device=self.device,
                source=source,
                batches=self._batches(source),
                optimizer=self._optimizer(model) if training else None,
                autocast=self._autocast(),
                seed=spec.seed or 0,
            )
            loss, infer = partial(self.workload.loss, model), partial(self.workload.infer, model)
            self.prepare(loss, infer, clipping(self._state, self.workload.clip_norm))
            self.workload.begin(self._state)

    def prepare(self, loss: Loss, infer: Infer, clip: Callable[[], object] | None) -> None:
        """Makes a new engine: for a trainer that trains another network, or by another loss."""
        self._engine = engine_class(self.spec.engine)(self.state, loss, infer, clip)

    def train_step(self) -> Tensor:
        """The updates of one training step, and what the environment does after them; gives their mean loss."""
        workload, state, engine = self.workload, self.state, self.engine
        losses = []
        for _ in range(workload.updates_per_step):
            with mark("data"):
                batch = workload.augment(next(state.batches))
            losses.append(engine.update(batch))
        if workload.interactive:
            with mark("data"):
                workload.interact(state, None)
        return losses[0] if len(losses) == 1 else torch.stack(losses).mean()

    def infer_step(self) -> Output:
        with mark("data"):
            batch = next(self.state.batches)
        output: Output | None = self.engine.infer(batch)
        if self.workload.interactive:
            with mark("data"):
                output = self.workload.interact(self.state, output)
        assert output is not None
        return output

    def run(self, steps: int, on_step: Callable[[Step], Any] | None = None) -> list[float] | list[Output]:
        """Runs the steps, each inside the hook where there is one; gives all losses, or the last output of inference.

        Outputs are large, and keeping them all would be counted as the network's memory; a hook sees every one.
        """
        training = self.spec.phase == "train"
        work: Callable[[], Tensor | Output] = self.train_step if training else self.infer_step
        results: list[Any] = []
        with self._memory_watched():
            for _ in range(steps):
                if not training:
                    results.clear()
                step = Step(self._steps_done, work)
                if on_step is not None:
                    on_step(step)
                results.append(step.run())
                self._steps_done += 1
            if not training or not results:
                return results
            # losses are read at the end and all at once: reading makes the host wait for the device
            losses: list[float] = torch.stack(results).flatten().tolist()
            return losses

    def close(self) -> None:
        """Frees the device, stops background readers and emulators, and puts the settings of the process back."""
        if self._state is not None and hasattr(self._state.source, "close"):
            self._state.source.close()
        self._state = self._engine = None
        self._settings.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_engine(self) -> None:
        refusal = engine_class(self.spec.engine).refusal(self.workload, self.device, self.spec.phase)
        if refusal is not None:
            raise EngineError(f"engine {self.spec.engine} {refusal}")

    def open_data(self) -> Any:
        """What batches are read or made from: the folder of real data, or the workload's synthetic data."""
        if self.spec.data is None:
            return self.workload.synthetic(self.spec.seed or 0)
        folder = folder_at(self.spec.data, self.workload.expects)
        return self.workload.open(folder, self.split)

    def _batches(self, source: Any) -> Iterator[Batch]:
        with feeding(self.spec.feeding) as choice:
            batches = self.workload.feed(source, self.device, self.spec.seed or 0)
        self.fed = choice.used
        return batches

    def _optimizer(self, model: nn.Module) -> Optimizer:
        try:
            return self.workload.optimizer(model)
        except ValueError as error:  # torch checks what it is given: a negative rate, say
            raise BadOption(f"the optimizer of {self.workload.name}: {error}") from None

    def _autocast(self) -> Callable[[], AbstractContextManager[Any]]:
        dtype = AUTOCAST.get(self.spec.precision or "")
        return nullcontext if dtype is None else partial(torch.autocast, self.device.type, dtype=dtype)

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
