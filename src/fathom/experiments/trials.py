"""The trials of a search that has not ended, on disk: `fathom advise --verify`, started again, goes on after them."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from fathom.core.advice import Setting, SettingTrial
from fathom.core.files import replace_whole

SUFFIX = ".trials"  # a line of JSON for each, in the order in which they were made


class KeptTrials:
    """Trials of an earlier process, as long as the same settings are asked for in the same order; new ones are added.

    `identity` is all that they depend on: the model and how it runs, the machine, the versions.
    """

    def __init__(self, folder: Path, identity: Any) -> None:
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        self.path = folder / f"advise-{digest[:16]}{SUFFIX}"
        self._earlier, self._taken = _read(self.path), list[SettingTrial]()

    @property
    def found(self) -> int:
        """How many earlier ones have not been asked for yet."""
        return len(self._earlier)

    def trial(self, setting: Setting, against: Setting, measure: Callable[[], SettingTrial]) -> SettingTrial:
        fits = bool(self._earlier) and (self._earlier[0].setting, self._earlier[0].against) == (setting, against)
        earlier = self._earlier.pop(0) if fits else None
        if earlier and (earlier.failed is None or earlier.refused):
            self._taken.append(earlier)
            return earlier
        if earlier is None:
            self._earlier.clear()
        self._taken.append(measure())  # also what failed then: with more time or memory it may not
        with contextlib.suppress(OSError):  # on a full disk the search goes on, and cannot be resumed
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_whole(self.path, "".join(json.dumps(each.to_json()) + "\n" for each in self._taken))
        return self._taken[-1]

    def finish(self) -> None:
        """The search has ended: the next one measures anew."""
        with contextlib.suppress(OSError):
            self.path.unlink()


def _read(path: Path) -> list[SettingTrial]:
    """Empty where there is no such file, or a damaged one: then all are made anew."""
    try:
        return [SettingTrial.from_json(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError):
        return []
