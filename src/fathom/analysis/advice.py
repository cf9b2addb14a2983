"""What to change first about a slow model: measured gains of settings, and what its profile says of all else.

A change that was tried has the gain that was measured. One that was not has at most what the profile's rule allows: all
of the time that it could remove.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fathom.analysis.actions import actions_by_rule
from fathom.analysis.statistics import ratio_interval
from fathom.core.advice import Setting, SettingTrial
from fathom.core.record import Record

MEASURED, PREDICTED, AT_MOST = "measured", "predicted", "at most, from the profile"
TRIED_BY = {  # rule of the profile -> settings that do what it says, any of them
    "launching": (Setting(engine="cudagraph"), Setting(engine="compile+cudagraph")),
    "low_precision": (Setting(precision="bf16"), Setting(precision="tf32")),
    "fusion": (Setting(engine="compile"),),
    "optimizer": (Setting(engine="fused"),),
    "layout": (Setting(engine="channels_last"),),
    "outside_ops": (Setting(engine="compile"),),
}
HOW = {  # what to write, by a part of a setting
    "compile": "torch.compile(model)",
    "cudagraph": "torch.compile(model, mode='reduce-overhead') (CUDA graphs)",
    "channels_last": "model and images in memory_format=torch.channels_last",
    "fused": "the optimizer with fused=True",
    "onnxruntime": "inference by ONNX Runtime",
    "openvino": "inference by OpenVINO",
    "bf16": "torch.autocast in bfloat16",
    "tf32": "torch.set_float32_matmul_precision('high') (TF32)",
}
OTHER_BATCH = "another batch is another training run: check the learning rate and the quality reached"


@dataclass(frozen=True, kw_only=True)
class Change:
    """One thing to change, and how many times as many items per second it gives."""

    what: str
    times: float
    low: float | None = None  # of the 95 % interval over turns, within one process
    high: float | None = None
    known: str = MEASURED
    evidence: str = ""
    setting: Setting | None = None  # None: to be done by hand
    caution: str = ""
    disturbed: bool = False  # other programs used the machine meanwhile


def in_code(setting: Setting) -> str:
    """A setting as what to write."""
    parts = set(setting.engines)
    if "cudagraph" in parts:
        parts.discard("compile")  # its line has both
    lines = [HOW.get(part, part) for part in sorted(parts)]
    lines += [HOW.get(setting.precision, setting.precision)] if setting.precision else []
    lines += [f"a batch of {setting.batch}"] if setting.batch else []
    lines += [f"torch.set_num_threads({setting.threads})"] if setting.threads else []
    lines += [f"{setting.workers} data workers"] if setting.workers else []
    return ", ".join(lines) or "nothing"


def changes(record: Record, helpful: Sequence[SettingTrial], tried: Iterable[SettingTrial]) -> list[Change]:
    """What was measured to help, the largest gain first; then what the profile says of changes that were not tried.

    A rule whose change was tried, and did not help, is no advice.
    """
    done = {trial.setting for trial in tried if trial.trial is not None}
    covering = [trial.setting for trial in helpful]
    found = actions_by_rule(record)
    rules = {name: action for name, action in found.items() if not _is_done(name, done, covering)}
    by_hand = [
        Change(what=action.what, times=1 / (1 - min(action.gain, 0.99)), known=AT_MOST, evidence=action.evidence)
        for action in rules.values()
    ]
    return [*map(_measured, helpful), *by_hand]


def _is_done(rule: str, done: Iterable[Setting], helpful: Sequence[Setting]) -> bool:
    """Whether what it says was tried, or is a part of what helps."""
    parts = TRIED_BY.get(rule, ())
    return any(_does(each, rule) for each in done) or any(each.covers(part) for each in helpful for part in parts)


def _does(setting: Setting, rule: str) -> bool:
    """Whether the setting is what the rule says to do; of data workers, any number."""
    return setting in TRIED_BY.get(rule, ()) or (rule == "data" and bool(setting.workers))


def _measured(trial: SettingTrial) -> Change:
    interval = ratio_interval([trial.gains])
    return Change(
        what=in_code(trial.setting),
        times=interval.median,
        low=interval.low,
        high=interval.high,
        evidence=f"results agree: {trial.agreement}",
        setting=trial.setting,
        caution=OTHER_BATCH if trial.setting.batch else "",
        disturbed=bool(trial.disturbed),
    )
