"""Store: a folder of records, each written once and whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from fathom.errors import BadOption, DataError
from fathom.record import Record


class Store:
    """Records as JSON files. A reader sees a whole record or none, and nothing is ever overwritten."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def add(self, record: Record) -> Path:
        spec = record.spec
        path = self.folder / f"{spec.workload}-{spec.phase}-{spec.id}-{record.id}.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _write_whole(path, json.dumps(record.to_json(), indent=1, allow_nan=True))
        except OSError as error:
            raise BadOption(f"cannot write {path}: {error.strerror or error}") from None
        return path

    def records(self) -> Iterator[Record]:
        """Every record of the folder, oldest first; what is no record is passed over here and told by strangers()."""
        yield from sorted((record for record, _ in self._read() if record), key=lambda record: record.started)

    def strangers(self) -> list[str]:
        """One line for each JSON file that is not a record this Fathom can read."""
        return [problem for _, problem in self._read() if problem]

    def _read(self) -> Iterator[tuple[Record | None, str | None]]:
        if not self.folder.is_dir():
            raise DataError.at(self.folder, "no such folder of records")
        for path in sorted(self.folder.glob("*.json")):
            try:
                yield Record.from_json(json.loads(path.read_text()), str(path)), None
            except DataError as error:
                yield None, str(error)
            except (ValueError, OSError) as error:
                yield None, f"{path}: not readable as JSON: {error}"


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
