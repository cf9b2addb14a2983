"""What a record that was read must hold beyond its types: numbers that can be, tables that are tables, plain text.

A record may come from anywhere. Whatever passes here, every analysis and report can compute with.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from fathom.core.trial import FLOORS

if TYPE_CHECKING:
    from fathom.core.feeding import FeedTimes
    from fathom.core.ranks import Ranks
    from fathom.core.record import Artifact, Learning, Profile, Record
    from fathom.core.trial import Trial

LARGEST = 1e30  # of any number: far beyond FLOP or bytes of a step, and a product of two still has a float
LONGEST_S = 1e10  # seconds: three centuries
SMALLEST = 1e-30  # of any number but zero: less cannot be divided by
SHORTEST_STEP_S = 1e-9  # a nanosecond: no step is shorter, and no clock would show it
LARGEST_COUNT = 2**63
DEEPEST = 16  # levels of an option's or a cell's value
LONGEST_TEXT = 1_000_000  # characters; an image has a limit of its own
LARGEST_IMAGE = 20_000_000  # characters of base 64
SIGNED = {"loss", "losses", "rounded_losses", "quality", "target", "temperature_c"}  # what may be negative
UNBOUNDED = {"loss", "losses", "quality"}  # what may be no number in a record of a failed run
FREE = {"options", "strategy_options", "settings", "rows"}  # what holds anything: options, the cells of an artifact
STEPS = {  # lists of times that medians are divided by
    *("step_s", "plain_step_s", "free_step_s", "sample_s"),
    *("turn_step_s", "turn_update_s", "compute_s"),
}
PNG = b"\x89PNG\r\n\x1a\n"
DEVICE = re.compile(r"[a-z_]{1,20}(:[0-9]{1,4})?")


class Implausible(ValueError):
    """A value that no run can have left; the text names the field."""


def check(record: Record) -> Record:
    """The record itself, or an error that names its first implausible value."""
    _check_value("", record, failed=record.outcome == "failed")
    if not DEVICE.fullmatch(record.device):
        raise Implausible(f"device {record.device[:40]!r} is not the name of one")
    if record.step_s and not any(record.step_s):
        raise Implausible("step_s: no step took any time")
    if record.outcome == "ok" and record.spec.kind in ("timed", "profiled") and not (record.step_s or record.profile):
        raise Implausible("outcome ok, but no timed steps and no profile")
    if record.outcome == "ok" and record.spec.kind == "trial" and record.trial is None:
        raise Implausible("outcome ok, but no trial")
    if record.outcome == "ok" and record.spec.kind == "feed" and not (record.step_s and record.feed):
        raise Implausible("outcome ok, but no fed steps")
    if record.feed:
        _check_feed(record.feed, len(record.step_s))
    if record.profile:
        _check_profile(record.profile)
    if record.trial:
        _check_trial(record.trial, record.spec.precision or "fp32")
    if record.learning:
        _check_learning(record.learning)
    if record.ranks:
        _check_ranks(record.ranks)
    return record


def _check_trial(trial: Trial, precision: str) -> None:
    """Both sides ran as many turns and compared as many losses: they are divided pair by pair."""
    if precision not in FLOORS:
        raise Implausible(f"trial in {precision}, for which no tolerance is known")
    if not trial.eager.losses and trial.output_difference is None and trial.mismatch is None:
        raise Implausible("trial has compared nothing")
    sides = (trial.eager, trial.engine)
    for name in ("turn_step_s", "turn_update_s", "losses"):
        if len({len(getattr(side, name)) for side in sides}) != 1:
            raise Implausible(f"trial.{name} is not as long for both engines")
    if not trial.eager.turn_step_s or min(side.steps for side in sides) < 1:
        raise Implausible("trial has no turns")
    if any(len(losses) != len(trial.eager.losses) for losses in trial.rounded_losses):
        raise Implausible("trial.rounded_losses is not as long as the losses")


def _check_feed(feed: FeedTimes, steps: int) -> None:
    if not (feed.input_s and feed.compute_s):
        raise Implausible("feed has no times of input alone, or none of compute alone")
    if len(feed.wait_s) != steps:
        raise Implausible(f"feed.wait_s has {len(feed.wait_s)} values for {steps} steps")
    if any(not (transfer.bytes and transfer.seconds and min(transfer.seconds) > 0) for transfer in feed.transfers):
        raise Implausible("feed.transfers has a copy of no bytes or in no time")


def check_values(record: object, *, failed: bool) -> None:
    """Every number and text of a record of any kind, by the names of its fields."""
    _check_value("", record, failed=failed)


def _check_ranks(ranks: Ranks) -> None:
    """Analyses divide by these."""
    if ranks.ranks < 1 or any(not each.sample_s or each.message_bytes < 1 for each in ranks.collectives):
        raise Implausible("ranks has a collective without samples, or no ranks")
    samples = [each for work in ranks.shared_work for each in (work.alone_s, work.together_s)]
    samples += [each for work in ranks.overlaps for each in (work.compute_s, work.message_s, work.both_s)]
    if any(not each or min(each) <= 0 for each in samples):
        raise Implausible("ranks has shared work or an overlap without positive times")


def _check_profile(profile: Profile) -> None:
    if not profile.step_s:
        raise Implausible("profile.step_s is empty")
    if profile.light and not (profile.light.step_s and profile.light.plain_step_s):
        raise Implausible("profile.light has no steps")


def _check_learning(learning: Learning) -> None:
    if learning.better not in ("higher", "lower"):
        raise Implausible(f"learning.better is {learning.better[:40]!r}, not higher or lower")
    if learning.selected is not None and not 1 <= learning.selected <= max(1, len(learning.curve)):
        raise Implausible(f"learning.selected is {learning.selected} of {len(learning.curve)} evaluations")
    for each in learning.earlier:
        if not 1 <= each.evaluations <= max(1, len(learning.curve)):
            raise Implausible(f"learning.earlier: {each.evaluations} of {len(learning.curve)} evaluations")
    for artifact in learning.artifacts:
        _check_artifact(artifact)


def _check_artifact(artifact: Artifact) -> None:
    title = artifact.title[:40]
    if any(len(row) != len(artifact.columns) for row in artifact.rows):
        raise Implausible(f"artifact {title!r}: a row has not {len(artifact.columns)} cells")
    if any(not (cell is None or isinstance(cell, str | int | float)) for row in artifact.rows for cell in row):
        raise Implausible(f"artifact {title!r}: a cell is neither text nor a number")
    if artifact.png is not None and not _is_png(artifact.png):
        raise Implausible(f"artifact {title!r}: not a PNG image in base 64")


def _is_png(text: str) -> bool:
    try:
        return len(text) <= LARGEST_IMAGE and base64.b64decode(text, validate=True).startswith(PNG)
    except (binascii.Error, ValueError):
        return False


def _check_value(name: str, value: Any, failed: bool, depth: int = 0) -> None:
    """One value and all that it holds; the name is that of the field it stands in."""
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, float):
        if not SHORTEST_STEP_S <= value <= LONGEST_S:  # which any field may hold
            _check_float(name, value, failed)
    elif isinstance(value, int):
        if abs(value) >= LARGEST_COUNT or (value < 0 and name not in SIGNED and not depth):
            raise Implausible(f"{name} is {_short(value)}")
    elif isinstance(value, str):
        _check_text(name, value)
    elif known := _names(type(value)):  # type: ignore[arg-type]  # a class has a hash
        for each in known:
            if (content := getattr(value, each)) is not None:
                _check_value(each, content, failed)
    else:
        deeper = depth + (name in FREE)
        if deeper > DEEPEST:
            raise Implausible(f"{name} is nested too deeply")
        for content in _held(name, value):
            _check_value(name, content, failed, deeper)


def _are_usual(value: object) -> bool:
    """Whether it is a list of numbers that any field may hold, as most of a record is."""
    if not isinstance(value, list) or set(map(type, value)) != {float}:
        return False
    return min(value) >= SHORTEST_STEP_S and max(value) <= LONGEST_S and not math.isnan(sum(value))


def _held(name: str, value: object) -> Iterable[object]:
    """What a mapping or a list holds that has to be looked at."""
    if isinstance(value, Mapping):
        for key in value:
            _check_text(name, key)
        return value.values()
    return value if isinstance(value, Sequence) and not _are_usual(value) else ()


@cache
def _names(kind: Any) -> tuple[str, ...]:
    """The fields of a dataclass; none of anything else."""
    found = fields(kind) if is_dataclass(kind) else ()
    return tuple(each.name for each in found if each.name not in ("png", "origin"))


def _check_float(name: str, value: float, failed: bool) -> None:
    if not math.isfinite(value):
        if not (failed and name in UNBOUNDED) and name != "rows":
            raise Implausible(f"{name} is {value}")
        return
    most = LONGEST_S if name.endswith("_s") and not name.endswith("per_s") else LARGEST
    if not (value >= 0 or name in SIGNED or name in FREE) or abs(value) > most:
        raise Implausible(f"{name} is {value:g}")
    if (name in STEPS and value < SHORTEST_STEP_S) or (0 < value < SMALLEST and name not in SIGNED | FREE):
        raise Implausible(f"{name} is {value:g}")


def _check_text(name: str, text: Any) -> None:
    if not isinstance(text, str):
        raise Implausible(f"{name} has a key that is no text")
    if len(text) > LONGEST_TEXT:
        raise Implausible(f"{name} has {len(text)} characters")
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError:
        raise Implausible(f"{name} is no valid Unicode text") from None


def _short(value: int) -> str:
    return str(value) if abs(value) < 10**18 else f"a number of {value.bit_length()} bits"
