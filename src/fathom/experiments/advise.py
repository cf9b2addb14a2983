"""What makes a model run faster on this machine: settings tried one by one beside the usual one, then combined.

Each trial is a process of its own, in which the setting and the usual one run in turns (measure/settings.py). A setting
is better where it has more items per second and its results agree. The choice is confirmed by trials of its own, in
which those nearest to it run beside it: the best of many noisy ratios is better in the first trial than in the next.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from fathom.analysis.statistics import ratio_interval
from fathom.core.advice import USUAL, Setting, SettingTrial
from fathom.core.errors import DataError, FathomError
from fathom.core.events import OnProgress, no_progress
from fathom.core.spec import RunSpec
from fathom.experiments.engines import TIMEOUT_S
from fathom.experiments.isolate import in_worker
from fathom.experiments.study import powers_of_two
from fathom.machine.host import usable_cores

LEAST_GAIN = 1.01  # items per second over the usual ones, below which a setting is not worth changing
TARGET = 0.05  # that the advised setting may be slower than the best
CONFIRMED = 3  # fresh trials: the advised setting against the usual one, and those nearest to it against it
MOST_COMBINED = 4  # trials of settings on top of each other
LARGER = (2, 4)  # times the batch
OWN_ENGINES = ("compile", "channels_last", "fused")
OWN_CUDA_ENGINES = ("compile+cudagraph",)
WORKLOAD_ENGINES = ("compile", "channels_last", "fused", "onnxruntime", "openvino")
WORKLOAD_CUDA_ENGINES = ("compile+cudagraph", "cudagraph")

Try = Callable[[Setting, Setting], SettingTrial]  # of the first against the second


@dataclass(frozen=True, kw_only=True)
class Usual:
    """How the model runs now, as far as settings to try depend on it."""

    device: str
    phase: str = "train"
    precision: str | None = "fp32"
    batch: int | None = None  # None: no other can be made
    threads: int | None = None
    own: bool = False  # a user's module, not a workload
    step: bool = False  # a user's ready step: only threads can be tried
    data: bool = False  # read by data workers


def candidates(usual: Usual, cores: int | None = None) -> list[Setting]:
    """Every change that may apply, one at a time; which of them does not is found by trying.

    What covers another goes before it.
    """
    cuda = usual.device.startswith("cuda")
    threads = [] if cuda else [each for each in powers_of_two(cores or usable_cores()) if each != usual.threads]
    tried = [Setting(threads=each) for each in threads]
    if usual.step:
        return tried
    names = (*(OWN_CUDA_ENGINES if cuda else ()), *OWN_ENGINES) if usual.own else _workload_engines(cuda, usual.phase)
    engines = [Setting(engine=name) for name in names if name != "fused" or usual.phase == "train"]
    precisions = ("bf16", *(("tf32",) if cuda else ())) if usual.precision == "fp32" else ()
    batches = [usual.batch * factor for factor in LARGER] if usual.batch else []
    workers = powers_of_two(cores or usable_cores()) if usual.data else []
    return [
        *engines,
        *(Setting(precision=each) for each in precisions),
        *(Setting(batch=each) for each in batches),
        *tried,
        *(Setting(workers=each) for each in workers),
    ]


def _workload_engines(cuda: bool, phase: str) -> tuple[str, ...]:
    """Exported graphs run inference on a CPU."""
    exported = ("onnxruntime", "openvino")
    return tuple(
        name
        for name in (*(WORKLOAD_CUDA_ENGINES if cuda else ()), *WORKLOAD_ENGINES)
        if name not in exported or (phase == "infer" and not cuda)
    )


@dataclass(frozen=True)
class Found:
    """All trials, what they advise, and what measuring that again gave."""

    trials: list[SettingTrial]
    advised: Setting
    confirmed: list[SettingTrial] = field(default_factory=list)  # fresh trials

    @property
    def distance(self) -> float | None:
        """How much slower the advised setting is than the best of those measured again, the usual one among them.

        None where none was measured again, or the advised one failed then, or gave other results.
        """
        gains = self._gains_again
        if not self.confirmed or self.advised not in gains:
            return None
        return 1 - gains[self.advised] / max(gains.values())

    @property
    def _first_choice(self) -> Setting:
        """What the others were measured against."""
        return next((trial.against for trial in self.confirmed if trial.against.changes), USUAL)

    @property
    def _gains_again(self) -> dict[Setting, float]:
        """Items per second over those of the first choice; of more trials than one the geometric mean."""
        first = self._first_choice
        gains: dict[Setting, list[float]] = {first: [1.0]}
        for trial in filter(is_sound, self.confirmed):
            other, times = (trial.setting, gain(trial)) if trial.against == first else (trial.against, 1 / gain(trial))
            gains.setdefault(other, []).append(times)
        return {setting: statistics.geometric_mean(found) for setting, found in gains.items()}

    @property
    def helpful(self) -> list[SettingTrial]:
        """The newest trial of each against the usual one, where it helps: the advised one first, then the fastest."""
        newest = {trial.setting: trial for trial in [*self.trials, *self.confirmed] if trial.against == USUAL}
        return sorted(ranked(newest.values()), key=lambda trial: trial.setting != self.advised)

    @property
    def better(self) -> Setting | None:
        """What turned out to be clearly better than the advised setting when both were measured again.

        That may be the usual setting; and anything is, where the advised one failed.
        """
        if not self.confirmed or (self.distance is not None and self.distance <= TARGET):
            return None
        gains, first = self._gains_again, self._first_choice
        faster = [trial.setting for trial in self.confirmed if trial.against == first and helps(trial)]
        fastest = max([USUAL, *faster], key=lambda setting: gains.get(setting, 1.0))
        return fastest if fastest != self.advised else None


def gain(trial: SettingTrial) -> float:
    """Items per second over those of what it is tried against: the median over turns."""
    return statistics.median(trial.gains)


def is_sound(trial: SettingTrial) -> bool:
    return trial.trial is not None and trial.failed is None and trial.disagreement is None


def helps(trial: SettingTrial) -> bool:
    """Faster by more than the turns scatter, with the same results."""
    return is_sound(trial) and gain(trial) >= LEAST_GAIN and ratio_interval([trial.gains]).low > 1


def ranked(trials: Iterable[SettingTrial]) -> list[SettingTrial]:
    """Those that help, the best first; the one that changes less goes before an equal one."""
    return sorted(filter(helps, trials), key=lambda trial: (-gain(trial), len(trial.setting.changes)))


def search(singles: Sequence[Setting], attempt: Try, confirm: bool = True) -> Found:
    """The single changes, then the helpful ones on top of the best, one after another.

    A change that another one covers is tried only where that one does not help.
    """
    trials: list[SettingTrial] = []
    for setting in singles:
        if not any(helps(trial) and trial.setting.covers(setting) for trial in trials):
            trials.append(_settled(setting, attempt))
    order = ranked(trials)
    best, combined = (order[0] if order else None), 0
    for other in order[1:]:
        assert best is not None
        if combined == MOST_COMBINED or not _adds(best.setting, other.setting):
            continue
        both = _settled(best.setting.with_(other.setting), attempt)
        trials.append(both)
        combined += 1
        if helps(both) and gain(both) > gain(best):
            best = both
    found = Found(trials, best.setting if best else USUAL)
    return _confirmed(found, attempt) if confirm else found


def _settled(setting: Setting, attempt: Try) -> SettingTrial:
    """The trial; where it seems faster and its turns scatter too much to tell, the second one."""
    first = attempt(setting, USUAL)
    if not is_sound(first) or gain(first) < LEAST_GAIN or helps(first):
        return first
    second = attempt(setting, USUAL)
    return second if is_sound(second) else first


def _adds(best: Setting, other: Setting) -> bool:
    """Whether the other changes something that the best leaves as it is; engines add to engines."""
    ours, theirs = best.changes, other.changes
    if set(theirs) - {"engine"} & set(ours):
        return False
    return bool(other.engines - best.engines) or bool(set(theirs) - {"engine"})


def _confirmed(found: Found, attempt: Try) -> Found:
    """The choice against the usual setting again, and those nearest to it against the choice, in fresh processes.

    What is clearly better then, and once more, is advised.
    """
    again: list[SettingTrial] = []
    for advised in [*(trial.setting for trial in ranked(found.trials)), USUAL]:
        again += _in_fresh_processes(advised, attempt)
        if advised == USUAL or is_sound(again[-1]):
            break
    tried = {trial.setting for trial in again}
    near = sorted(filter(is_sound, found.trials), key=lambda trial: -gain(trial))
    others = list(dict.fromkeys(trial.setting for trial in near if trial.setting not in tried))
    room = CONFIRMED - bool(advised.changes)
    known = replace(found, advised=advised, confirmed=[*again, *(attempt(each, advised) for each in others[:room])])
    if (better := known.better) is None:
        return known
    pair = (better, advised) if better.changes else (advised, USUAL)
    settled = replace(known, confirmed=[*known.confirmed, attempt(*pair)])
    return settled if settled.better is None else replace(settled, advised=settled.better)


def _in_fresh_processes(advised: Setting, attempt: Try) -> Iterator[SettingTrial]:
    """One trial against the usual setting; where it fails, one more."""
    if advised.changes:
        yield (first := attempt(advised, USUAL))
        if not is_sound(first):
            yield attempt(advised, USUAL)


def in_process(
    spec: RunSpec, own: dict[str, Any], setting: Setting, against: Setting = USUAL,
    on_progress: OnProgress = no_progress, timeout_s: float = TIMEOUT_S,
    rounded: dict[str, list[list[float]]] | None = None,
) -> SettingTrial:  # fmt: skip
    """The trial in a process of its own; whatever goes wrong there is a failed trial.

    `own` is empty for a workload; for a user's model it has the target, and the loss and the optimizer where given.
    `rounded` keeps, by precision, losses of a workload that all its trials are judged by: the first one finds them.
    """
    found: list[SettingTrial] = []
    job = {"setting": setting.changes, "against": against.changes, "spec": spec.to_json()}
    job |= own or {"rounded": rounded or {}}
    try:
        ended = in_worker(
            job, on_progress, timeout_s, on_event=lambda event: found.append(_decoded(event)) if event else None
        )
    except FathomError as error:
        return SettingTrial(setting=setting, against=against, failed=str(error))
    if found:
        return found[0]
    why = getattr(ended, "reason", "its process left no result")
    return SettingTrial(setting=setting, against=against, failed=why)


def keep_rounded(trial: SettingTrial, rounded: dict[str, list[list[float]]]) -> None:
    """For the trials after it, which are then judged by the same losses."""
    if trial.trial and trial.trial.rounded_losses:
        rounded[trial.precision] = trial.trial.rounded_losses


def _decoded(event: Any) -> SettingTrial:
    try:
        return SettingTrial.from_json(event["result"])
    except (KeyError, msgspec.MsgspecError) as error:
        raise DataError(f"the worker's trial cannot be read: {error}") from None


def spec_of(base: RunSpec, seconds: float | None) -> RunSpec:
    """As a trial, which has no warm-up or steps of its own."""
    return replace(base, kind="trial", budget_s=seconds)
