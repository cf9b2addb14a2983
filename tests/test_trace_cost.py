"""What reading a trace costs, as counts: what is imported, decoded and looked at once; columns against plain loops."""

from __future__ import annotations

import gzip
import json
import random
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from trace_events import event

from fathom.core import files
from fathom.core.errors import DataError
from fathom.trace import reader, sources, walk
from fathom.trace.call import TracedCall
from fathom.trace.event import Event, HasArguments, OpArgs, all_op_args
from fathom.trace.event_columns import EventColumns
from fathom.trace.profile import as_profile
from fathom.trace.steps import NO_STEP, Steps
from fathom.trace.taxonomy.names import NAMES, named_type, required, spellings

HEAVY = ("torch", "pandas", "scipy", "numpy.ma")
INPUTS: dict[str, Any] = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}


def nested(number: int) -> list[Event]:
    """An op that no type claims, with a typed one in it, which has another typed one in it; a call, and its kernel."""
    at = 100.0 * number
    return [
        event("my::block", at, 90, **INPUTS),
        event("aten::addmm", at + 10, 60, **INPUTS),
        event("aten::mm", at + 20, 40, **INPUTS),
        event("cudaLaunchKernel", at + 30, 5, "cuda_runtime", correlation=number),
        event("sgemm", at + 50, 20, "kernel", tid=7, correlation=number),
        event("cudaStreamSynchronize", at + 80, 5, "cuda_runtime", correlation=100_000 + number),
    ]


def test_reading_a_trace_imports_nothing_heavy(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    events = [
        {"ph": "X", "cat": each.cat, "name": each.name, "pid": 1, "tid": each.tid, "ts": each.ts, "dur": each.dur,
         "args": json.loads(bytes(each.args) or b"{}")}
        for number in range(3) for each in nested(number)
    ]  # fmt: skip
    path.write_text(json.dumps({"traceEvents": events}))
    code = (
        "import sys; from pathlib import Path; from fathom.trace.profile import from_trace\n"
        f"record = from_trace(Path({str(path)!r}))\n"
        f"print(len(record.profile.rows), [name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2 []"


def test_the_command_for_one_trace_imports_nothing_for_many() -> None:
    code = "import sys, fathom.cli.commands.profile\nprint([name for name in sys.argv[1:] if name in sys.modules])"
    command = [sys.executable, "-c", code, *HEAVY, "multiprocessing", "concurrent.futures"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_arguments_of_ops_are_decoded_once_and_only_where_they_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []

    def counted(events: Iterable[HasArguments]) -> Iterator[OpArgs]:
        each = [event for event in events if isinstance(event, Event)]
        decoded.extend(event.name for event in each)
        return all_op_args(each)

    monkeypatch.setattr(walk, "all_op_args", counted)
    monkeypatch.setattr(walk, "op_args", lambda _: pytest.fail("one by one"))
    found = walk.breakdown([each for number in range(5) for each in nested(number)])
    assert decoded == ["aten::addmm"] * 5, "not those of the op around it, nor of the one inside"
    assert {call.op: call.is_wrapper for call in found.op_calls} == {"my::block": True, "aten::addmm": False}


class Touched(list[Event]):
    """Events that tell which of them were looked at."""

    def __init__(self, events: Iterable[Event]) -> None:
        super().__init__(events)
        self.names: set[str] = set()

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.names |= {found.name}
        return found


def test_what_is_inside_a_typed_op_is_passed_over() -> None:
    columns = EventColumns.of([each for number in range(5) for each in nested(number)])
    events = Touched(columns.events)
    found = walk.breakdown(replace(columns, events=events))
    assert [call.op for call in found.op_calls] == ["my::block", "aten::addmm"] * 5
    assert events.names == {"my::block", "aten::addmm", "cudaLaunchKernel", "cudaStreamSynchronize", "sgemm"}
    assert {activity.op_call.op for activity in found.gpu_activities if activity.op_call} == {"aten::addmm"}


def written(path: Path, *events: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"traceEvents": events}))
    return path


MM = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}


@pytest.mark.parametrize("other", [{"ph": "s", "name": 5}, {"name": "no phase"}, {"ph": "Z"}, {"ph": "M", "ts": "x"}])
def test_of_events_without_a_duration_nothing_is_decoded(tmp_path: Path, other: dict[str, Any]) -> None:
    """They are half of many traces."""
    trace = reader.read(written(tmp_path / "trace.json", other, MM, {**other, "dur": 4}))
    assert ([each.name for each in trace.events], trace.malformed) == (["aten::mm"], 0)


def test_a_malformed_event_with_a_duration_is_told(tmp_path: Path) -> None:
    trace = reader.read(written(tmp_path / "trace.json", MM, {**MM, "name": []}, {"ph": []}, {**MM, "dur": -1}))
    assert ([each.name for each in trace.events], trace.malformed) == (["aten::mm"], 3)


def test_members_of_a_packed_trace_follow_one_another(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": [{**MM, "name": f"aten::op{number}"} for number in range(30_000)]}).encode()
    halves = gzip.compress(text[: len(text) // 2]), gzip.compress(text[len(text) // 2 :])
    path = tmp_path / "trace.json.gz"
    for packed in (gzip.compress(text, 0), b"".join(halves), halves[0] + bytes(9) + halves[1] + bytes(70_000)):
        path.write_bytes(packed)
        assert files.gunzipped(path, packed, 10_000_000) == text
        assert len(reader.read(path).events) == 30_000
    for broken in (halves[0] + halves[1][:-9], halves[0] + b"no member" + halves[1], halves[0][:40] + halves[0][50:]):
        with pytest.raises(DataError, match="corrupt gzip"):
            files.gunzipped(path, broken, 10_000_000)


def test_equal_arguments_are_interpreted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreted: list[OpArgs] = []
    original = TracedCall.from_args

    def counted(op: str, args: OpArgs, list_width: int | None = 4) -> TracedCall:
        interpreted.append(args)
        return original(op, args, list_width)

    monkeypatch.setattr(TracedCall, "from_args", counted)
    profile = as_profile(walk.breakdown([each for number in range(50) for each in nested(number)]), [], [])
    assert [(row.op, row.calls) for row in profile.rows] == [("my::block", 50), ("aten::addmm", 50)]
    assert len(interpreted) == 2, "of the product; and none, of the op around it"


def test_a_trace_with_empty_stacks_is_not_searched_for_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch before 1.12 wrote them without with_stack=True."""

    def refused(*_: object) -> None:
        pytest.fail("searched for lines")

    monkeypatch.setattr(sources, "places", refused)
    events = [each for number in range(3) for each in nested(number)]
    empty = [event("aten::mm", 95, 4, **{**INPUTS, "Call stack": ""}), *events]
    found = sources.sources(walk.breakdown(empty))
    assert found is not None, "the waits are there"
    assert (found.lines, found.exact, sum(wait.calls for wait in found.waits)) == ([], False, 3)
    assert found.unknown_s == pytest.approx(3 * 20e-6)


def test_walking_a_trace_leaves_no_memory_behind() -> None:
    """Frames refer to themselves while they are open, and are not seen by the garbage collector."""
    events = [each for number in range(500) for each in nested(number)]
    walk.breakdown(events)  # names are classified once
    tracemalloc.start()
    try:
        walk.breakdown(events)
        first, _ = tracemalloc.get_traced_memory()
        for _ in range(3):
            walk.breakdown(events)
        last, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert last - first < 500 * 16, "less than a pointer or two for each frame"


@pytest.mark.parametrize("seed", range(5))
def test_columns_are_in_the_order_of_nesting(seed: int) -> None:
    """As a sort of each thread gives it, for whole microseconds with many ties."""
    rng = random.Random(seed)
    kinds = ("cpu_op", "user_annotation", "kernel", "python_function")
    events = [
        event(rng.choice("abc"), rng.randrange(20), rng.randrange(5), rng.choice(kinds), tid=rng.randrange(3))
        for _ in range(200)
    ]
    columns = EventColumns.of(events)
    mask = ~columns.on_gpu & ~columns.of_category("python_function")
    chosen = [each for each in events if each.cat in ("cpu_op", "user_annotation")]
    found = [columns.at(index) for index in columns.nested(mask)]
    assert columns.chosen(mask) == chosen
    assert [thread[0].tid for thread in found] == list(dict.fromkeys(each.tid for each in events))
    for thread in found:
        own = [each for each in chosen if each.tid == thread[0].tid]
        ordered = sorted(own, key=lambda each: (each.ts, -each.dur))
        assert [id(each) for each in thread] == [id(each) for each in ordered]
    times = {name: [each.dur for each in chosen if each.name == name] for name in "abc"}
    assert columns.totals(mask) == {name: (len(each), sum(each)) for name, each in times.items()}
    assert columns.totals(columns.named(lambda name: name == "z")) == {}


def test_the_steps_at_many_times_are_those_at_each() -> None:
    steps = Steps([(10.0, 20.0), (20.0, 30.0), (40.0, 41.0)], waited=False)
    times = [0.0, 9.9, 10.0, 15.0, 20.0, 29.0, 30.0, 30.1, 39.0, 40.0, 41.0, 41.1, 99.0]
    found = steps.all_at(EventColumns.of([event("", time, 0) for time in times]).begin).tolist()
    assert found == [NO_STEP if step is None else step for step in map(steps.at, times)]
    assert [found[times.index(time)] for time in (20.0, 30.0, 30.1, 41.0)] == [1, 1, NO_STEP, 2]


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("all_?reduce", "reduce"),
        (r"(?<![a-z])rope(?!rt)", "rope"),
        (r"nccl\w*_(send|recv)", "nccl"),
        ("a((b|c)d)?efg", "efg"),
        ("abx*cde", "cde"),
        ("ab{0,3}cde", "cde"),
        ("(max|min)", ""),
        ("abc(d|e)|fghij", ""),
        (r"^memcpy\shtod", "memcpy"),
        ("wkv[0-9_]", "wkv"),
    ],
)
def test_text_that_every_match_has(word: str, text: str) -> None:
    assert required(word) == text


def test_words_with_underscores_that_may_be_absent_are_texts() -> None:
    assert spellings("all_?reduce") == ["allreduce", "all_reduce"]
    assert sorted(spellings("a_?b_?c")) == ["a_b_c", "a_bc", "ab_c", "abc"]
    assert spellings(r"nccl_?\w") == [r"nccl_?\w"]
    assert sorted(spellings("(un)?pad_(max|min)")) == ["pad_max", "pad_min", "unpad_max", "unpad_min"]
    assert spellings("wx(yz)+") == ["wx(yz)+"], "any number of them"
    assert spellings("(?<![a-z])rope(s|d)") == ["(?<![a-z])rope(s|d)"]


def test_names_have_the_type_of_the_first_expression_that_is_found_in_them() -> None:
    """Texts are only a shortcut: the table decides, expression by expression."""
    words = [word for _, words in NAMES for word in words.split()]
    plain = [re.sub(r"\\.|[^a-z0-9_:<>]", "", word.split("|")[0]) for word in words]
    names = [*plain, *(f"{one}_{two}_kernel<float>" for one, two in pairwise(plain)), "x", ""]
    table = [(kind, re.compile("|".join(f"(?:{word})" for word in words.split()))) for kind, words in NAMES]
    expected = {name: next((kind for kind, pattern in table if pattern.search(name)), None) for name in names}
    assert {name: named_type(name) for name in names} == expected
    assert len({kind for kind in expected.values() if kind}) > 80
