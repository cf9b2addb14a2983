"""The journal of a power or clock sweep: what was set before, on disk before anything is changed.

It outlives the process. While it is there, a setting may still be changed: `fathom energy --restore` puts back what it
names. One file for each machine, also where machines share a home folder, in the state folder of the user who runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import pwd
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from fathom.core import files, plugins
from fathom.core.errors import BadOption, CappingError, DataError, NotRestored
from fathom.machine.governor import Governor
from fathom.machine.host import host_id

RESTORE = "fathom energy --restore"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the machine that is about to be changed."""

    governor: str  # package.module:Class
    part: str
    scope: str  # for people
    unit: str
    before: float | None
    wanted: float

    @classmethod
    def of(cls, governor: Governor, before: float | None, wanted: float) -> Entry:
        kind = type(governor)
        name = f"{kind.__module__}:{kind.__qualname__}"
        return cls(
            governor=name, part=governor.part, scope=governor.scope, unit=governor.unit, before=before, wanted=wanted
        )

    def load(self) -> Governor:
        return plugins.load_class("governors", self.governor, Governor).at(self.part)  # type: ignore[type-abstract]

    def __str__(self) -> str:
        before = "no limit" if self.before is None else f"{self.before:g} {self.unit}"
        return f"{self.scope}: {self.wanted:g} {self.unit} instead of {before}"


class Journal:
    """The file, and the lock beside it."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_path()

    def refuse_leftover(self) -> None:
        """Fails where an earlier sweep has not been restored."""
        if self.path.exists():
            left = "; ".join(map(str, self.read()))
            raise NotRestored(f"an earlier sweep has not been restored ({left}); run {RESTORE} first")

    def read(self) -> list[Entry]:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=list[Entry])
        except FileNotFoundError:
            return []
        except OSError as error:
            raise DataError.at(self.path, f"cannot be read: {error.strerror or error}") from None
        except msgspec.DecodeError as error:
            raise DataError.at(self.path, f"not a journal of settings: {error}; set them back by hand") from None

    def write(self, entries: Sequence[Entry]) -> None:
        """Whole and on disk when this returns; before, the journal is what it was."""
        hidden = self.path.with_name(f".{self.path.name}.part")
        try:
            with hidden.open("wb") as file:
                file.write(msgspec.json.encode(entries))
                file.flush()
                os.fsync(file.fileno())
            hidden.replace(self.path)
            self._sync_folder()
        except OSError as error:
            with contextlib.suppress(OSError):
                hidden.unlink()
            raise BadOption(f"cannot write {self.path}: {error.strerror or error}; nothing was changed") from None

    def remove(self) -> None:
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            line = f"cannot remove {self.path}: {error.strerror or error}; the settings themselves are restored"
            raise BadOption(line) from None
        with contextlib.suppress(OSError):  # a journal that a power failure brings back does no harm
            self._sync_folder()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """For one sweep or one restore at a time. The system releases the lock when its holder ends, however."""
        path = self.path.with_suffix(".lock")
        with files.lock_file(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CappingError(f"another power or clock sweep is running on this machine ({path})") from None
            except OSError as error:  # without a lock, two sweeps could each restore what the other has set
                raise CappingError(f"cannot lock {path}: {error.strerror or error}") from None
            yield

    def _sync_folder(self) -> None:
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def default_path() -> Path:
    """Below $XDG_STATE_HOME, or the home folder of the user that the process runs as.

    That folder is asked from the system, not from $HOME: sudo may leave the caller's there, or not, and `sudo fathom
    energy --restore` must look where `sudo fathom energy` wrote.
    """
    state = os.environ.get("XDG_STATE_HOME")
    folder = Path(state) if state else Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".local" / "state"
    return folder / "fathom" / f"capping-{host_id() or platform.node()}.json"
