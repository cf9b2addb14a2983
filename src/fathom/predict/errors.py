"""How wrong predictions from a calibration were: as evaluated on its own machine, else on one that comes with Fathom.

errors.json is written by `python -m fathom.predict.errors FOLDER ...` from calibrations with their errors beside them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

import msgspec

from fathom.core.errors import DataError, first_line
from fathom.core.spec import EAGER
from fathom.predict.campaign import SUFFIX, find, read
from fathom.predict.estimate import Interval
from fathom.predict.evaluation import Summary
from fathom.predict.target import ENGINES

FILE = "errors.json"
BESIDE = ".errors.json"  # beside a calibration: what `fathom predict --evaluate` found


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Of steps of one machine, executed by one engine."""

    machine: str = ""  # whose they are; "": of the calibration's own
    gpu: bool = False
    engine: str = EAGER
    summaries: list[Summary] = field(default_factory=list)

    def interval(self, predictor: str, *situations: str) -> Interval | None:
        """Of the first of these situations that was measured."""
        found = [each for each in self.summaries if each.predictor == predictor and each.situation in situations]
        return replace(found[0].interval, measured_on=self.machine) if found else None


def errors_file(path: Path, engine: str = EAGER) -> Path:
    of_engine = "" if engine == EAGER else f".{engine}"
    return path.with_name(path.name.removesuffix(SUFFIX) + of_engine + BESIDE)


def own_errors(path: Path, engine: str = EAGER) -> Errors:
    """Of this calibration; without any where it was not evaluated."""
    beside = errors_file(path, engine)
    try:
        found = msgspec.json.decode(beside.read_bytes(), type=list[Summary]) if beside.exists() else []
    except (OSError, msgspec.MsgspecError) as error:
        raise DataError.at(beside, f"not the errors of a calibration; evaluate it again: {first_line(error)}") from None
    return Errors(engine=engine, summaries=found)


@cache
def shipped() -> list[Errors]:
    return msgspec.json.decode((files("fathom") / "predict" / FILE).read_bytes(), type=list[Errors])


def errors_of_its_kind(gpu: bool, engine: str) -> Errors:
    """Of a machine of the same kind whose steps were executed in the same way; without any where there is none."""
    return next((each for each in shipped() if (each.gpu, each.engine) == (gpu, engine)), Errors())


def made_from(folders: Iterable[Path]) -> Iterator[Errors]:
    for path in (path for folder in folders for path in find(folder)):
        campaign = read(path)
        for engine in ENGINES:
            found = own_errors(path, engine)
            if found.summaries:
                yield replace(found, machine=campaign.machine, gpu=campaign.gpu)


if __name__ == "__main__":
    made = msgspec.json.encode(list(made_from(map(Path, sys.argv[1:]))))
    Path(__file__).with_name(FILE).write_bytes(msgspec.json.format(made, indent=1) + b"\n")
