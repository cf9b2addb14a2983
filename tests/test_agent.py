"""The agent: what it answers, that nothing else gets between its answers, and that it ends with its stdin."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from io import BytesIO
from threading import Event
from typing import Any

import pytest
from sample_records import record_of

from fathom import __version__
from fathom.core.errors import Refused
from fathom.core.events import OnProgress
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.experiments import agent, engines
from fathom.experiments.agent import MARK, Agent, _private_stdout
from fathom.machine.host import boot_id

SPEC = RunSpec(workload="vgg")


class Requests:
    """A stdin that ends when the last answer has been given, as that of whoever waits for it."""

    def __init__(self, *lines: bytes) -> None:
        self.lines, self.answered = list(lines), Event()

    def __iter__(self) -> Any:
        yield from self.lines
        self.answered.wait(60)


class Answers(BytesIO):
    """Ends the requests after so many answers."""

    def __init__(self, requests: Requests, expected: int) -> None:
        super().__init__()
        self.requests, self.expected = requests, expected

    def flush(self) -> None:
        if len(self.given()) >= self.expected:
            self.requests.answered.set()

    def given(self) -> list[dict[str, Any]]:
        """Without signs of life, which come every few seconds."""
        lines = [line for line in self.getvalue().split(b"\n") if line.startswith(MARK)]
        return [message for line in lines if "alive" not in (message := json.loads(line[len(MARK) :]))]


def answers(*requests: bytes, expected: int) -> list[dict[str, Any]]:
    asked = Requests(*requests)
    given = Answers(asked, expected)
    Agent(asked, given).serve()  # type: ignore[arg-type]
    return given.given()


def line(**message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


def test_it_says_who_it_is_and_skips_what_is_no_request() -> None:
    hello, refused = answers(b"GET / HTTP/1.1\n", b"[1]\n", b"\xff\n", line(dance=1), expected=2)
    assert hello["hello"]["boot"] == boot_id()
    assert hello["hello"]["machine"]["cpu"]
    assert hello["hello"]["version"] == __version__
    assert refused == {"refused": "no such request: dance"}


def test_a_run_gives_its_progress_and_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    made = replace(record_of("vgg"), spec=SPEC)

    def run(spec: RunSpec, on_progress: OnProgress) -> Record:
        on_progress(1, 2)
        return made

    monkeypatch.setattr(agent, "isolated", run)
    _, progress, record = answers(line(run=SPEC.non_defaults()), expected=3)
    assert progress == {"progress": [1, 2]}
    assert Record.from_json(record["record"]) == made


def test_a_run_that_is_refused_is_a_failed_record_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(spec: RunSpec, on_progress: OnProgress) -> Record:
        raise Refused("nothing fits")

    monkeypatch.setattr(agent, "isolated", refuse)
    hello, answer = answers(line(run=SPEC.non_defaults()), expected=2)
    record = Record.from_json(answer["record"])
    assert (record.outcome, record.reason) == ("failed", "nothing fits")
    assert record.machine.host_id == hello["hello"]["machine"]["host_id"]


def test_a_plan_is_made_here_and_another_versions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "plan_here", lambda names: [replace(SPEC, workload=name) for name in names])
    _, planned, refused = answers(line(plan={"names": ["vgg", "memnet"]}), line(plan={"unheard": 1}), expected=3)
    assert [RunSpec.from_json(spec).workload for spec in planned["planned"]] == ["vgg", "memnet"]
    assert "unheard" in refused["refused"]


def test_the_end_of_stdin_ends_a_run_by_sigterm(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a user ended a study: isolated() has the worker ended first."""
    ended = Event()
    before = signal.signal(signal.SIGTERM, lambda *_: ended.set())
    requests = Requests(line(run=SPEC.non_defaults()))

    def run(spec: RunSpec, on_progress: OnProgress) -> Record:
        requests.answered.set()  # whoever asked has gone
        # in short turns: a signal between the last bytecode and a long wait would be seen after it alone
        assert any(ended.wait(0.1) for _ in range(600))
        return replace(record_of("vgg"), spec=SPEC)

    monkeypatch.setattr(agent, "isolated", run)
    try:
        Agent(requests, BytesIO()).serve()  # type: ignore[arg-type]
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.is_set()


def test_what_is_printed_meanwhile_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with _private_stdout() as out:
        os.write(1, b"a library speaks")
        out.write(b"an answer\n")
    os.write(1, b"as before")
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("an answer\nas before", "a library speaks")


def test_it_names_the_trials_that_its_machine_can_make(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "candidates", lambda: ["compile", "cudagraph"])
    monkeypatch.setattr(engines, "refusal", lambda spec: "needs a GPU" if spec.engine == "cudagraph" else None)
    wanted = replace(SPEC, kind="profiled", steps=200)
    _, answer = answers(line(trials=wanted.non_defaults()), expected=2)
    (trial,) = (RunSpec.from_json(each) for each in answer["trials"])
    assert (trial.engine, trial.kind, trial.workload) == ("compile", "trial", "vgg")
