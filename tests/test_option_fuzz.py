"""A seeded fuzzer of the command line: whatever is typed, an exit code that is documented, no traceback and no hang.

Everything is the real thing but the worker, which is replaced by one that answers at once.
"""

from __future__ import annotations

import json
import random
import signal
import traceback
import typing
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import fathom
from sample_records import failed_record, record_of, sections_of

from fathom.core import plugins, stopping
from fathom.core.errors import Refused
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments import hosts, isolate
from fathom.measure.calibration import run as calibration

CASES, SEED = 300, 20
LONGEST_S = 240  # for one case, on a loaded machine; then it hangs
CODES = {0, 1, 2, 130, 143}
INTEGERS = ["0", "-1", "-5", str(10**9 + 1), str(10**20), f"-{10**20}", "9" * 5000, "1e3", "1_0", "٣", ""]
FLOATS = ["0.5", "1", "0", "-1", "nan", "inf", "-inf", "1e300", "1e-300", "1e999", "9" * 400, "one", ""]
WORDS = ["", " ", "-", "--", ":", "=", "a:b", "no.such:Thing", "json:nothing", "ü", "\udcff", "\x1b[31m", "%", "null"]
WORDS += ["x" * 300, "x" * 5000, "x" * 300 + ":y", "[/bold]", "cpu:7", "cuda:99999999999999999999", "{}", "../x"]
NAMES = ["autoenc", "autoenc", "deepq", "memnet", "autoen", "no such"]
KNOWN = {  # what an option is meant for, so that half of the cases get beyond the parser
    "name": NAMES,
    "names": NAMES,
    "phase": ["train", "infer", "training"],
    "preset": ["tiny", "small", "small", "paper", "tny"],
    "device": ["cpu", "cpu", "auto", "cpu:0", "cuda:9", "gpu"],
    "precision": ["fp32", "bf16", "tf32", "fp16"],
    "engine": ["eager", "cudagraph", "eagre"],
    "set_": ["hidden=0", "latent=4", "latent=1e99", "latent=NaN", "batch=2", "=", "latent", "latent=" + "9" * 5000],
    "cores": ["1", "1,1", "0", "1,,2", "9" * 5000, "1,-1"],
    "question": [*plugins.names("questions"), "breakdwn"],
    "a": ["threads=1", "threads=9999", "set.latent=2", "device=cpu,threads=1", "batch=1e9", "records", "threads="],
    "b": ["threads=2", "precision=bf16", "set.hidden=0", "engine=eager", "records", "x=1"],
    "fail_over": ["5%", "0.05", "-5%", "1e999%", "5%%"],
    "format_": ["html", "md", "pdf"],
    "target": ["json:loads", "no.such:model", "json"],
    "suite": ["fathom", "cookbook", "cookbok"],
    "hosts": ["a", "a,b", "a,a", "-v", "a,,b"],
    "via": ["ssh", "ssh", "shh"],
    "actors": ["1", "1,2", "0", "1,,2"],
    "memory": ["80GB", "1MiB", "0", "9" * 400, "GB"],
}
PATHS = ["records", "empty", "marked", "file", "nowhere", "records/../records", "/proc/nowhere", "/dev/null/x"]
PATHS += ["records", "records", "x" * 300, "\udcff", ""]
OUTPUTS = [
    "out",
    "out",
    "out",
    "out/deeper",
    "file",
    "file/x",
    "/proc/nowhere",
    "/dev/null/x",
    "x" * 300,
    "out/" + "y" * 5000,
]
TABLES = ["t.csv", "t.xlsx", "t.md", "t.html", "/dev/full/t.csv"]


class Worker:
    """In the place of a worker process: a good record, a failed one, a refusal, a death without words or a signal."""

    chance = random.Random(SEED)
    printed = ""

    def __init__(self, job: dict[str, Any], *_: object) -> None:
        own = RunSpec(workload=str(job.get("target")), source="model") if "target" in job else None
        self.spec, self.ended = own or RunSpec.from_json(job), False

    def messages(self, _: float) -> Iterator[Any]:
        self.ended = True
        match self.chance.randrange(20):
            case 0:
                raise stopping.Stopped(self.chance.choice([signal.SIGINT, signal.SIGTERM]))
            case 1:
                raise Refused("nothing fits")
            case 2:
                yield {"record": {"schema": "?"}}
            case 3:
                yield {"record": replace(failed_record(), spec=self.spec).to_json()}
            case _:
                made = replace(record_of(self.spec.workload), spec=self.spec, sections=sections_of(10.0))
                yield {"progress": [1, 2]}
                yield {"record": json.loads(json.dumps(made.to_json()))}

    def end(self) -> None: ...

    def exit_reason(self) -> str:
        return "the worker was killed by SIGKILL"


def _of_type(kind: Any, name: str, chance: random.Random) -> str:
    if kind is int:
        return chance.choice(["1", "2", "3"] if chance.random() < 0.6 else INTEGERS)
    if kind is float:
        return chance.choice(FLOATS)
    if kind is Path:
        if name in ("out", "report", "trace_out"):
            return chance.choice(TABLES if chance.random() < 0.3 else OUTPUTS)
        return chance.choice(PATHS)
    return chance.choice(KNOWN.get(name, WORDS) if chance.random() < 0.9 else WORDS)


def _case(command: str, function: Callable[..., None], chance: random.Random) -> list[str]:
    """The command with some of its arguments and options, as its function declares them."""
    words, options = [], []
    for name, hint in typing.get_type_hints(function, include_extras=True).items():
        if name in ("return", "context"):
            continue
        declared, option = typing.get_args(hint)
        kinds = [kind for kind in typing.get_args(declared) if kind is not type(None)] or [declared]
        many = typing.get_origin(kinds[0]) is list
        kind = typing.get_args(kinds[0])[0] if many else declared if declared is list else kinds[0]
        if type(option).__name__ == "ArgumentInfo":
            words += [_of_type(kind, name, chance) for _ in range(chance.randint(0, 2) if many else 1)]
        elif chance.random() < 0.25:
            flag = next((text for text in option.param_decls or () if text.startswith("--")), f"--{name}")
            flag = flag.partition("/")[0].replace("_", "-")
            options += [flag] if kind is bool else [flag, _of_type(kind, name, chance)]
    extra = chance.choice([*[[]] * 12, ["--nonsense"], ["--help"], ["--"], [chance.choice(WORDS)]])
    return [command, *words, *options, *extra]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds what the cases name, and no way out of it."""
    folder = tmp_path / "a" / "b"
    for name in ("records", "empty", "marked"):
        (folder / name).mkdir(parents=True)
    store = Store(folder / "records")
    paths = [store.add(made) for made in (record_of("autoenc"), record_of("memnet"), failed_record())]
    (folder / "marked" / "r.json").write_bytes(b"\xef\xbb\xbf" + paths[0].read_bytes())
    (folder / "file").write_text("no record")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(isolate, "_Worker", Worker)
    monkeypatch.setattr(hosts, "TRANSPORTS", {hosts.SSH: lambda host, command: ["false"]})  # none is reached
    monkeypatch.setattr(calibration.Runner, "run", lambda self, *_: self.campaign)  # which would take minutes
    return folder


def _hangs(*_: object) -> None:
    raise TimeoutError(f"no answer within {LONGEST_S} s")


def _faults(case: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code of a case, and what is wrong with how it ended."""
    signal.alarm(LONGEST_S)
    try:
        code = fathom(monkeypatch, *case)
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return -1, f"{type(error).__name__}: {error!s:.200} ({where.filename}, line {where.lineno})"
    finally:
        signal.alarm(0)
    err = capsys.readouterr().err
    told = [line for line in err.splitlines() if line.startswith("fathom: ") and " is now " not in line]
    if code not in CODES:
        return code, f"ended with {code}"
    if "Traceback" in err or len(told) != (code in (2, 130, 143)) or max(map(len, told), default=0) > 1000:
        return code, f"ended with {code} and said {err!s:.500}"
    return code, ""


@pytest.mark.usefixtures("here", "on_the_laptop")
def test_whatever_is_typed_has_an_exit_code_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(SEED)
    commands = {name: plugins.load("commands", name).command for name in plugins.names("commands")}
    found: Counter[int] = Counter()
    faults: list[str] = []
    before = signal.signal(signal.SIGALRM, _hangs)
    try:
        for index in range(CASES):
            name = list(commands)[index % len(commands)]
            case = _case(name, commands[name], chance)
            code, fault = _faults(case, monkeypatch, capsys)
            found[code] += 1
            if fault:
                faults.append(f"case {index}: {[f'{word:.60}' for word in case]}: {fault}")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert faults == []
    assert found[2] > CASES / 4, found
    assert found[0] > CASES / 20, found
    assert min(found[1], found[130] + found[143]) > 0, found


def test_the_fuzzer_is_deterministic() -> None:
    command = plugins.load("commands", "run").command
    one, other = ([_case("run", command, random.Random(seed)) for seed in range(20)] for _ in range(2))
    assert one == other


def test_a_fault_of_our_own_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fuzzer's own test: an error of a command reaches it as an error."""

    def broken(*_: object) -> list[Record]:
        raise KeyError("no such thing")

    monkeypatch.setattr("fathom.cli.commands.analyse._answer", broken)
    with pytest.raises(KeyError):
        fathom(monkeypatch, "analyse", "breakdown")
