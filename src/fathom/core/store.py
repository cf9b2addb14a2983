"""Store: a folder of records, each written once and whole."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fathom.core.errors import BadOption, DataError
from fathom.core.files import MB, lock_file, read_bytes
from fathom.core.fingerprint import Machine
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.stopping import unwinding

MOST_BYTES = 32 * MB  # of one record: the largest known has 1 MB
FRAMEWORK_SUFFIX = ".framework.json"  # of records of another kind (framework_store.py), which may be in the same folder
NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}  # of a file system without hard links
LOCK = ".lock"  # the file in a folder of records that a process locks while it measures


def read(paths: Iterable[Path], on_unreadable: Callable[[str], None]) -> list[Record]:
    """The records of these folders and single files, without duplicates.

    Unreadable and foreign files of a folder are skipped: on_unreadable gets one line for each.
    """
    found: list[Record] = []
    for path in paths:
        if path.name.endswith(FRAMEWORK_SUFFIX):
            continue  # of another kind, and read elsewhere
        if _is_file(path):
            record, problem = _read(path)
            if record is None:
                raise DataError(str(problem))
            found.append(record)
            continue
        found += Store(path).records(on_unreadable)
    return list({record.id: record for record in found}.values())


def check_writable(path: Path) -> None:
    """Fails before hours of measuring rather than after them. Creates no file."""
    existed = path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
        if not existed:
            path.unlink()
    except OSError as error:
        raise BadOption(f"cannot write {path}: {error.strerror or error}") from None


def read_nonempty(paths: Sequence[Path], on_unreadable: Callable[[str], None]) -> list[Record]:
    """The same, and an error where there are none."""
    found = read(paths, on_unreadable)
    if not found:
        raise DataError(f"no records in {', '.join(map(str, paths))}; make some with fathom study")
    return found


class Store:
    """Records as JSON files. A reader sees a whole record or none, and nothing is ever overwritten.

    Given a machine, it is that machine's store: runs that other machines left in the folder are neither its records nor
    work that is done already. elsewhere() has those.
    """

    def __init__(
        self, folder: Path | str, machine: Machine | None = None, lock_folder: Path | str | None = None
    ) -> None:
        """Another folder's lock is held where runs of both would slow each other."""
        self.folder = Path(folder)
        self._lock_folder = self.folder if lock_folder is None else Path(lock_folder)
        self.machine = machine
        self._seen = {path.name for path in self.folder.glob("*.json")}

    def check_writable(self) -> None:
        """Fails before anything is measured whose record could not be written."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise BadOption(f"cannot write to {self.folder}: {error.strerror or error}") from None

    def add(self, record: Record) -> Path:
        """A job of several nodes has one record, which each node adds: where they share the folder, the first does."""
        path = self.folder / f"{_stem(record.spec)}-{record.id}.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _write_whole(path, json.dumps(record.to_json(), indent=1, allow_nan=True))
        except OSError as error:
            added_by_another = isinstance(error, FileExistsError) and record.spec.nodes > 1
            if not added_by_another:
                raise BadOption(f"cannot write {path}: {error.strerror or error}") from None
        self._seen.add(path.name)
        return path

    def records(self, on_unreadable: Callable[[str], None] = lambda _: None) -> Iterator[Record]:
        """Every record of the folder, oldest first; of each JSON file that is none, on_unreadable gets one line."""
        own = []
        for record, problem in self._read():
            if record and self._is_own(record):
                own.append(record)
            if problem:
                on_unreadable(problem)
        yield from sorted(own, key=lambda record: record.started)

    def elsewhere(self) -> list[Record]:
        """The records of other machines than the store's; none where the store has no machine, or no folder yet."""
        found = (record for record, _ in self._read() if record) if self.folder.is_dir() else ()
        return [record for record in found if not self._is_own(record)]

    def unreadable(self) -> list[str]:
        """One line for each JSON file that is not a record this Fathom can read."""
        return [problem for _, problem in self._read() if problem]

    def remaining(self, planned: Iterable[RunSpec], accept: Callable[[Record], bool] = lambda _: True) -> list[RunSpec]:
        """The planned runs that have no successful record here yet, in order; one record stands for one run.

        accept() may refuse a record of the right spec, which then has to be made again.
        """
        records = self.records() if self.folder.is_dir() else ()  # before the first record there is no folder
        done = Counter(record.spec.id for record in records if record.outcome == "ok" and accept(record))
        missing = []
        for spec in planned:
            if done[spec.id]:
                done[spec.id] -= 1
            else:
                missing.append(spec)
        return missing

    def claim(self, spec: RunSpec) -> tuple[Record, Path] | None:
        """A successful run of this spec that another process has added since this store was opened; each only once."""
        for path in sorted(self.folder.glob(f"{_stem(spec)}-*.json")):
            if path.name not in self._seen:
                self._seen.add(path.name)
                record, _ = _read(path)
                if record and record.outcome == "ok" and self._is_own(record):
                    return record, path
        return None

    @contextlib.contextmanager
    def lock(self, on_wait: Callable[[], None]) -> Iterator[None]:
        """Locks the folder for the time of a run; on_wait() is called first where another process holds the lock.

        A machine's store is locked for that machine: others may measure themselves into the same folder meanwhile.
        The system releases the lock when its holder ends, however that happens.
        """
        whose = f"-{self.machine.digest}" if self.machine else ""
        path = self._lock_folder / f"{LOCK}{whose}"
        with lock_file(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:
                pass  # a file system without locks: nobody waits then, and records are still written whole
            yield

    def _is_own(self, record: Record) -> bool:
        return self.machine is None or record.machine.identity == self.machine.identity

    def _read(self) -> Iterator[tuple[Record | None, str | None]]:
        try:
            os.scandir(self.folder).close()  # glob() would find nothing in a folder that may not be read
        except (FileNotFoundError, NotADirectoryError):
            raise DataError.at(self.folder, "no such folder of records") from None
        except OSError as error:
            raise DataError.at(self.folder, f"cannot be read: {error.strerror or error}") from None
        found = sorted(self.folder.glob("*.json"))
        yield from (_read(path) for path in found if not path.name.endswith(FRAMEWORK_SUFFIX))


def _stem(spec: RunSpec) -> str:
    """How the names of a spec's records begin."""
    return f"{spec.slug}-{spec.phase}-{spec.id}"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:
        raise DataError.at(path, f"cannot be read: {error.strerror or error}") from None


def _read(path: Path) -> tuple[Record | None, str | None]:
    """The record in a file, or one line that says why it cannot be read."""
    if not _is_file(path):
        return None, f"{path}: not a file"  # a pipe, say, which would block
    try:
        record = Record.from_json(json.loads(read_bytes(path, MOST_BYTES)), str(path))
        return replace(record, origin=str(path.parent)), None
    except DataError as error:
        return None, str(error)
    except (ValueError, OSError, RecursionError) as error:
        return None, f"{path}: not readable as JSON: {error}"


def _write_whole(path: Path, text: str) -> None:
    """Writes a hidden file and links it: a crash leaves no half record, and an existing file is not overwritten."""
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.part")  # nodes that share a folder share pids, too
    with unwinding():
        try:
            with hidden.open("x") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            _put(hidden, path)
        finally:
            hidden.unlink(missing_ok=True)


def _put(hidden: Path, path: Path) -> None:
    try:
        os.link(hidden, path)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if path.exists():
            raise FileExistsError(path) from None
        hidden.rename(path)
