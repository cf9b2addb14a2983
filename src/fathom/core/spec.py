"""RunSpec: what to run, as plain frozen data with JSON in and out and a stable id."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os.path
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fathom.core.errors import BadOption, UnknownName, shortened
from fathom.core.feeding import Feeding

PHASES = ("train", "infer")
PRECISIONS = ("fp32", "tf32", "bf16")  # of a workload; bf16 is by autocast
FOUND_PRECISIONS = (*PRECISIONS, "fp16", "fp64", "mixed")  # of what a user made
SEPARATOR = "+"  # between engines that are combined
OWN = "own"  # the preset of what a user brought along
SOURCES = {  # where the work comes from -> the fields that may then be None: not known
    "workload": (),  # a workload of the suite or of a package: its name, preset and seed are enough to run it again
    "model": ("precision", "seed"),  # a user's module and batch
    "step": ("precision", "seed"),  # a user's own training or inference step
    "trace": ("precision", "seed"),  # a profiler trace made elsewhere
    "ranks": ("precision", "seed"),  # messages between ranks, without a network
}
EAGER = "eager"  # the engine of a plain program
KINDS = {  # what is measured -> the fields that say how long; the others keep their defaults
    "timed": ("warmup", "steps", "budget_s"),
    "profiled": ("warmup", "steps", "budget_s"),  # a timed pass, and a profiled one after it
    "program": ("warmup", "steps"),  # on a GPU: a trace of the whole program, context to last step
    "training": ("evaluations",),  # to the target quality of the workload's recipe
    "trial": ("budget_s",),  # an engine beside eager in one process: results compared, steps timed in turns
    # a baseline without work, and then one window of steps that is long enough for what meters it
    "energy": ("warmup", "window_s", "idle_s", "period_s", "estimates"),
    "feed": ("warmup", "steps", "budget_s"),  # input alone, compute alone, both; each pass takes the budget
    "collectives": (),  # operations of torch.distributed over message sizes
}
SCALINGS = ("weak", "strong")  # the batch of a rank, or that of all ranks together, stays the same
# the options that a workload with actors has, and a run of `fathom scale --actors` states
GAMES, ACTORS, FRAME_SKIP = "envs", "emulator_threads", "frame_skip"
LONGEST_SLUG = 80  # characters: file systems allow 255 in the whole name of a file
LARGEST_SEED = 2**62  # every generator takes those below
LONGEST_BUDGET_S = 30 * 86_400
RANGES = {  # the smallest and the largest that can be meant, on any machine; beyond them it is a slip of the keyboard
    "batch": (1, 10**9),
    "threads": (1, 65_536),
    "evaluations": (1, 1_000_000),
    "warmup": (0, 10_000_000),
    "steps": (1, 10_000_000),
    "seed": (0, math.inf),
    "ranks": (1, 65_536),
    "nodes": (1, 65_536),
}

_SWITCHES = {"profile": "profiled", "learn": "training", "life": "program"}  # what kinds were called up to schema 2
_RENAMED = {"rounds": "evaluations"}
_POSITIVE = {  # field -> what a message calls it
    "window_s": "a metered window in seconds",
    "period_s": "the period of the meters in seconds",
    "power_cap_w": "a power cap in watts",
    "clock_cap_mhz": "a clock cap in MHz",
}
_SLOW = ("slow_rank", "slow_link")
_SECONDS_AND_CAPS = ("budget_s", "idle_s", *_POSITIVE)


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run of one workload. None leaves a choice to the preset or to the machine.

    Equal work has an equal id: what can be written in two ways is kept in one.

        RunSpec(workload="autoenc", options={"batch": 4}) == RunSpec(workload="autoenc", batch=4)
    """

    workload: str
    phase: str = "train"
    kind: str = "timed"
    preset: str = "small"  # OWN where there is nothing to choose from
    device: str = "auto"
    precision: str | None = "fp32"
    engine: str = EAGER
    batch: int | None = None
    power_cap_w: float | None = None  # set by whoever starts the run, and put back after it; None: as the machine is
    clock_cap_mhz: float | None = None
    threads: int | None = None
    cores: tuple[int, ...] | None = None  # the worker is bound to these, by the system's numbers; None binds nothing
    warmup: int = 2
    steps: int = 10  # at most, where there is a budget
    budget_s: float | None = None  # stop earlier: when the median is known to 1 %, or this much time is spent
    evaluations: int | None = None  # of training, at most; None is as the recipe says
    window_s: float | None = None  # of metered steps, at least; None is as long as a valid window has to be
    idle_s: float | None = None  # metered before anything runs; None is the usual baseline
    period_s: float | None = None  # between two samples of the meters; None is the sampler's own
    estimates: bool = False  # whether power may be estimated where nothing meters it
    data: str | None = None  # a folder of real data; None is synthetic, or what the user brought along
    seed: int | None = 0
    options: Mapping[str, Any] = field(default_factory=dict)  # fields of the workload, changed
    feeding: Feeding | None = None  # how batches reach the device; None is as the data is usually fed
    ranks: int | None = None  # processes that work together; None is one, without torch.distributed
    nodes: int = 1  # machines that the ranks are divided among
    strategy: str | None = None  # how they divide the work, by name
    scaling: str | None = None  # of SCALINGS: what `batch` is the batch of, one rank or all of them
    strategy_options: Mapping[str, Any] = field(default_factory=dict)  # fields of the strategy, changed
    slow_rank: tuple[int, float] | None = None  # a rank whose computing takes so many times as long, injected
    slow_link: tuple[int, float] | None = None  # a rank whose communication does, injected
    source: str = "workload"  # of SOURCES; in all but the first, precision and seed may be None: not known

    def __post_init__(self) -> None:
        self._normalise()
        self._check_names()
        self._check_numbers()
        self._check_ranks()
        if self.kind == "training" and self.phase != "train":
            raise BadOption(f"a training run has phase train, not {self.phase}")
        if self.kind == "training" and self.feeding is not None:
            raise BadOption("feeding does not apply to a training run, which resumes with the reader of its recipe")
        for name in {name for lengths in KINDS.values() for name in lengths} - {*KINDS[self.kind]}:
            if getattr(self, name) != _DEFAULTS[name]:
                article = "an" if self.kind[0] in "aeiou" else "a"
                raise BadOption(f"{name} does not apply to {article} {self.kind} run")

    def _check_names(self) -> None:
        known = {"source": tuple(SOURCES), "phase": PHASES, "kind": tuple(KINDS)}
        known["precision"] = PRECISIONS if self.source == "workload" else FOUND_PRECISIONS
        for name, choices in known.items():
            value = getattr(self, name)
            if value not in choices and not (value is None and name in SOURCES[self.source]):
                raise UnknownName.among(f"{name} of a run" if name in {"source", "kind"} else name, str(value), choices)
        if self.seed is None and "seed" not in SOURCES[self.source]:
            raise BadOption(f"a {self.source} needs a seed")

    def _check_ranks(self) -> None:
        if self.ranks is None:
            for name in ("strategy", "scaling", "strategy_options", *_SLOW):
                if getattr(self, name):
                    raise BadOption(f"{name} needs a number of ranks")
            if self.nodes > 1:
                raise BadOption("nodes needs a number of ranks")
            return
        if self.ranks % self.nodes:
            raise BadOption(f"{self.ranks} ranks cannot be divided among {self.nodes} nodes")
        if self.scaling is not None and self.scaling not in SCALINGS:
            raise UnknownName.among("scaling", self.scaling, SCALINGS)
        for name in _SLOW:
            rank, factor = getattr(self, name) or (0, 1.0)
            if not 0 <= rank < self.ranks:
                raise BadOption(f"{name} must be of rank 0 to {self.ranks - 1}, not {rank}")
            if not 1 <= factor <= 1000:
                raise BadOption(f"{name} is 1 to 1000 times slower, not {factor:g}")

    def _normalise(self) -> None:
        options = dict(self.options)
        batch = options.pop("batch", self.batch)
        if self.batch is not None and batch != self.batch:
            raise BadOption(f"batch is given twice: {self.batch} and {batch}")
        changes: dict[str, Any] = {"batch": batch, "options": options}
        if self.data:
            changes["data"] = os.path.normpath(self.data)  # "mnist/" is no other run than "mnist"
        for name in _SECONDS_AND_CAPS:
            if (value := getattr(self, name)) is not None:
                changes[name] = float(value)
        engines = {name if ":" in name else name.replace("-", "_") for name in self.engine.split(SEPARATOR)}
        changes["engine"] = SEPARATOR.join(sorted(engines))  # in whatever order they are named
        if self.cores is not None:
            changes["cores"] = tuple(self.cores)  # JSON has only lists
        if isinstance(self.feeding, Mapping):  # as JSON has it
            changes["feeding"] = _feeding(self.feeding)
        for name in _SLOW:
            if (slow := getattr(self, name)) is not None:
                changes[name] = (int(slow[0]), float(slow[1]))
        if self.ranks == 1 and self.scaling is not None:
            changes["scaling"] = SCALINGS[0]  # one rank does the same work in both
        if self.device.startswith("cpu:"):
            changes["device"] = "cpu"  # torch takes any index for the one CPU
        elif self.device in ("cuda", "mps", "xpu"):
            changes["device"] = f"{self.device}:0"
        for name, value in changes.items():
            object.__setattr__(self, name, value)

    def _check_numbers(self) -> None:
        for name, (smallest, largest) in RANGES.items():
            value = getattr(self, name)
            if value is not None and type(value) is not int:
                raise BadOption(f"{name} must be a whole number, not {shortened(repr(value))}")
            if value is not None and value < smallest:
                raise BadOption(f"{name} must be at least {smallest}, not {number_in_words(value)}")
            if value is not None and value > largest:
                raise BadOption(f"{name} must be {smallest} to {largest:,}, not {number_in_words(value)}")
        if self.seed is not None and self.seed >= LARGEST_SEED:
            raise BadOption(f"seed must be below {LARGEST_SEED}, not {number_in_words(self.seed)}")
        if self.budget_s is not None and not 0 < self.budget_s < math.inf:
            raise BadOption(f"a budget must be some seconds, not {self.budget_s}")
        if self.budget_s is not None and self.budget_s > LONGEST_BUDGET_S:
            raise BadOption(f"a budget must be at most {LONGEST_BUDGET_S:,} seconds (30 days), not {self.budget_s:g}")
        if self.idle_s is not None and not 0 <= self.idle_s <= LONGEST_BUDGET_S:
            raise BadOption(f"the idle baseline must be some seconds, or 0 for none, not {self.idle_s}")
        for name, thing in _POSITIVE.items():
            if (value := getattr(self, name)) is not None and not 0 < value <= LONGEST_BUDGET_S:
                limit = f" and at most {LONGEST_BUDGET_S:,}" if value > LONGEST_BUDGET_S else ""
                raise BadOption(f"{thing} must be above 0{limit}, not {value:g}")
        if self.cores is not None and (not self.cores or min(self.cores) < 0):
            raise BadOption("cores must be numbers of this machine's cores, such as 0,1")

    @property
    def slug(self) -> str:
        """The workload's name as the name of a file may begin with it: `package.module:Class` has other characters."""
        return re.sub(r"[^A-Za-z0-9_.-]+", "-", self.workload)[-LONGEST_SLUG:].strip(".-") or "workload"

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunSpec:
        """Also from the fields that a spec had up to schema 2: three switches in place of the kind."""
        fields = {_RENAMED.get(name, name): value for name, value in data.items() if name not in _SWITCHES}
        for switch, kind in _SWITCHES.items():
            if data.get(switch):
                if fields.get("kind", kind) != kind:
                    raise BadOption(f"one run cannot be both {fields['kind']} and {kind}")
                fields["kind"] = kind
        for name in fields:
            if name not in cls.__dataclass_fields__:
                raise UnknownName.among("field of a run", name, cls.__dataclass_fields__)
        return cls(**fields)

    def non_defaults(self) -> dict[str, Any]:
        """Only what differs from the defaults, in words that every version of Fathom understands.

        A worker of another checkout is started with these: it need not know the fields that are left out.
        """
        changed = {name: value for name, value in self.to_json().items() if value != _DEFAULTS[name] and value != {}}
        switch = {kind: name for name, kind in _SWITCHES.items()}.get(changed.get("kind", ""))
        if switch:
            del changed["kind"]
        old = {new: name for name, new in _RENAMED.items()}
        return {old.get(name, name): value for name, value in changed.items()} | ({switch: True} if switch else {})

    @cached_property
    def id(self) -> str:
        """Twelve hex digits that are the same for equal work, on every machine.

        They are of what is not left at its default, so that a field added later leaves the old ids as they were.
        """
        changed = self.non_defaults()
        if "options" in changed:  # a value may be typed as 1 or as 1.0
            changed["options"] = {name: _whole(value) for name, value in changed["options"].items()}
        return hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:12]


_DEFAULTS = {
    entry.name: None if entry.default is dataclasses.MISSING else entry.default for entry in dataclasses.fields(RunSpec)
}


def _feeding(found: Mapping[str, Any]) -> Feeding:
    for name in found:
        if name not in Feeding.__dataclass_fields__:
            raise UnknownName.among("setting of feeding", str(name), Feeding.__dataclass_fields__)
    return Feeding(**found)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def number_in_words(value: int) -> str:
    """A whole number, however long, in a message; Python writes none of more than 4300 digits."""
    if abs(value) < 10**30:
        return str(value)
    return f"a number of {int((value.bit_length() - 1) * math.log10(2)) + 1} digits"


PYTHON_LITERALS = {"True": True, "False": False, "None": None}  # as people type them who know the options from Python


def read_value(text: str) -> Any:
    """A value that somebody typed: a JSON number or switch where it reads as one, or Python's switch; else a word."""
    if text in PYTHON_LITERALS:
        return PYTHON_LITERALS[text]
    try:
        return json.loads(text)
    except ValueError:
        return text
