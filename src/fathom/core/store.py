"""Store: a folder of records, each written once and whole."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from fathom.core.errors import BadOption, DataError
from fathom.core.record import Record
from fathom.core.spec import RunSpec


def read(paths: Iterable[Path], tell: Callable[[str], None]) -> list[Record]:
    """The records of these folders and single files, each once; what else a folder holds is told, one line each."""
    found: list[Record] = []
    for path in paths:
        if _is_file(path):
            record, problem = _read(path)
            if record is None:
                raise DataError(str(problem))
            found.append(record)
            continue
        store = Store(path)
        found += store.records()
        for problem in store.unreadable():
            tell(problem)
    return list({record.id: record for record in found}.values())


def check_writable(path: Path) -> None:
    """Before hours of measuring rather than after them; nothing is left where nothing was."""
    there = path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
        if not there:
            path.unlink()
    except OSError as error:
        raise BadOption(f"cannot write {path}: {error.strerror or error}") from None


def read_some(paths: Sequence[Path], tell: Callable[[str], None]) -> list[Record]:
    """The same where there is nothing to be done without any."""
    found = read(paths, tell)
    if not found:
        raise DataError(f"no records in {', '.join(map(str, paths))}; fathom study makes some")
    return found


class Store:
    """Records as JSON files. A reader sees a whole record or none, and nothing is ever overwritten."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._known = {path.name for path in self.folder.glob("*.json")}

    def check_writable(self) -> None:
        """Before something is measured that could not be kept."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise BadOption(f"cannot write to {self.folder}: {error.strerror or error}") from None

    def add(self, record: Record) -> Path:
        path = self.folder / f"{_stem(record.spec)}-{record.id}.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _write_whole(path, json.dumps(record.to_json(), indent=1, allow_nan=True))
        except OSError as error:
            raise BadOption(f"cannot write {path}: {error.strerror or error}") from None
        self._known.add(path.name)
        return path

    def records(self) -> Iterator[Record]:
        """Every record of the folder, oldest first; what is no record is passed over here and told by unreadable()."""
        yield from sorted((record for record, _ in self._read() if record), key=lambda record: record.started)

    def unreadable(self) -> list[str]:
        """One line for each JSON file that is not a record this Fathom can read."""
        return [problem for _, problem in self._read() if problem]

    def left(self, planned: Iterable[RunSpec], counts: Callable[[Record], bool] = lambda _: True) -> list[RunSpec]:
        """The runs still to be made, in their order: each that succeeded in this folder stands for one of its spec.

        Of those, counts() may say which to pass over.
        """
        there = self.records() if self.folder.is_dir() else ()  # before the first record there is no folder
        done = Counter(record.spec.id for record in there if record.outcome == "ok" and counts(record))
        missing = []
        for spec in planned:
            if done[spec.id]:
                done[spec.id] -= 1
            else:
                missing.append(spec)
        return missing

    def take(self, spec: RunSpec) -> tuple[Record, Path] | None:
        """A good run of this spec that somebody else has added since this store was opened; each is given once."""
        for path in sorted(self.folder.glob(f"{_stem(spec)}-*.json")):
            if path.name not in self._known:
                self._known.add(path.name)
                record, _ = _read(path)
                if record and record.outcome == "ok":
                    return record, path
        return None

    @contextlib.contextmanager
    def turn(self, wait: Callable[[], None]) -> Iterator[None]:
        """Holds the folder for the time of a run, after a call of wait() where somebody else holds it.

        The system lets go of it when its holder ends, however that happens.
        """
        path = self.folder / ".turn"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = path.open("a")
        except OSError as error:
            raise BadOption(f"cannot write {path}: {error.strerror or error}") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                wait()
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:
                pass  # a file system without locks: then nobody waits, and records are still whole
            yield

    def _read(self) -> Iterator[tuple[Record | None, str | None]]:
        if not self.folder.is_dir():
            raise DataError.at(self.folder, "no such folder of records")
        yield from map(_read, sorted(self.folder.glob("*.json")))


def _stem(spec: RunSpec) -> str:
    return f"{spec.workload}-{spec.phase}-{spec.id}"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:
        raise DataError.at(path, f"cannot be read: {error.strerror or error}") from None


def _read(path: Path) -> tuple[Record | None, str | None]:
    """The record in a file, or a line that says why there is none."""
    if not _is_file(path):
        return None, f"{path}: not a file"  # a pipe, say, which would be waited for
    try:
        return Record.from_json(json.loads(path.read_bytes()), str(path)), None
    except DataError as error:
        return None, str(error)
    except (ValueError, OSError, RecursionError) as error:
        return None, f"{path}: not readable as JSON: {error}"


def _write_whole(path: Path, text: str) -> None:
    """Through a hidden file and a link: a crash leaves no half record, and a name in use is not overwritten."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with hidden.open("x") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.link(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)
