"""One host: names that ssh cannot take for options, and a connection whose other side does anything but answer."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from sample_records import LAPTOP, MACHINES, record_of

from fathom.core.errors import BadOption, Refused, UnknownName
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.experiments.agent import MARK
from fathom.experiments.hosts import (
    MOST_HOSTS,
    Connection,
    Hello,
    Lost,
    command_line,
    hosts_of,
    last_words,
    named_twice,
    told_apart,
)

SPEC = RunSpec(workload="vgg")
RECORD: Record = replace(record_of("vgg"), spec=SPEC)


def said(**message: object) -> bytes:
    return MARK + json.dumps(message).encode() + b"\n"


HELLO = said(hello={"machine": msgspec.to_builtins(MACHINES[LAPTOP]), "boot": "b", "now": "2026"})
WHOLE = said(record=RECORD.to_json())


@contextmanager
def connected(*printed: bytes, end: str = "", timeout_s: float = 60.0) -> Iterator[Connection]:
    """The other side prints this, a piece for every line that it reads, and then does what `end` says."""
    program = f"""
import os, signal, sys
SRUN = "sh: 1: fathom: not found\\nsrun: error: n1: task 0: Exited with exit code 127\\n"
for piece in {list(printed)!r}:
    sys.stdout.buffer.write(piece); sys.stdout.buffer.flush()
    sys.stdin.readline()
{end}
"""
    connection = Connection("a", [sys.executable, "-S", "-c", program], timeout_s)
    try:
        yield connection
    finally:
        connection.close(0.0)


@pytest.mark.parametrize("text", ["a", "a,b", "user@a,b.c-d", "10.0.0.1,::1,fe80::1%eth0", "_x", "a, b"])
def test_host_names_are_taken(text: str) -> None:
    assert hosts_of(text) == [name.strip() for name in text.split(",")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,,b",
        "-oProxyCommand=x",
        "a,-v",
        "@a",
        "-l@a",
        "u@-v",
        "a b",
        "a;b",
        "$(x)",
        "a\nb",
        "a/b",
        "ü",
        "u@v@w",
        "x" * 5000,
    ],
)
def test_others_are_refused_before_anything_starts(text: str) -> None:
    with pytest.raises(BadOption, match="--hosts takes host names such as"):
        hosts_of(text)


def test_a_host_is_named_once_and_there_is_a_limit() -> None:
    with pytest.raises(BadOption, match="--hosts names b twice"):
        hosts_of("a,b,b")
    with pytest.raises(BadOption, match="hosts at most"):
        hosts_of(",".join(f"n{number}" for number in range(MOST_HOSTS + 1)))


def test_ssh_asks_no_question_and_takes_the_host_for_a_host() -> None:
    line = command_line("ssh", "a", "cd x && fathom")
    assert line[line.index("--") :] == ["--", "a", "cd x && fathom study --agent"]
    assert "BatchMode=yes" in line
    assert any(word.startswith("ConnectTimeout=") for word in line)
    with pytest.raises(UnknownName, match="did you mean srun"):
        command_line("srn", "a", "fathom")


def test_srun_starts_one_task_on_one_node() -> None:
    line = command_line("srun", "n1", "fathom")
    assert line[0] == "srun"
    assert {"--nodelist=n1", "--nodes=1", "--ntasks=1"} <= {*line}
    assert "--overlap" in line  # else it waits for the step that it may be started from
    assert line[-3:] == ["sh", "-c", "fathom study --agent"]


def test_answers_are_found_among_whatever_else_is_printed() -> None:
    noise = b"Welcome\n" + MARK + b"{half\n\xff\xfe\n" + b"no newline"
    with connected(noise + b"\n" + HELLO, said(progress=[1, 2]) + b"{}\n" + said(alive=True) + WHOLE) as connection:
        assert connection.hello().machine == MACHINES[LAPTOP]
        seen: list[tuple[int, int]] = []
        assert connection.run(SPEC, lambda *steps: seen.append(steps)) == RECORD
        assert seen == [(1, 2)]


@pytest.mark.parametrize("length", [1, len(MARK), len(WHOLE) // 2, len(WHOLE) - 2, len(WHOLE) - 1])
def test_a_part_of_a_record_is_no_record(length: int) -> None:
    with connected(HELLO, WHOLE[:length]) as connection:
        connection.hello()
        connection._ask(another="line")  # after which the other side has but one more to wait for
        with pytest.raises(Lost, match="ended with code 0"):
            connection.run(SPEC)


def test_a_whole_line_that_is_no_record_is_named() -> None:
    for wrong, why in {
        said(record={"schema": 4}): "not a Fathom record",
        said(record=[]): "not a Fathom record",
        said(record=replace(RECORD, spec=RunSpec(workload="memnet")).to_json()): "the record of another run",
        said(refused="no field 'x'"): "no field 'x'",
    }.items():
        with connected(HELLO, wrong) as connection:
            connection.hello()
            with pytest.raises(Lost, match=why):
                connection.run(SPEC)


def test_a_host_that_says_nothing_is_given_up() -> None:
    with connected(b"Welcome\n", timeout_s=0.05) as connection, pytest.raises(Lost, match=r"no answer for 0\.05 s"):
        connection.hello()


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("print('ssh: no route to a', file=sys.stderr); sys.exit(255)", "ended with code 255: ssh: no route to a"),
        ("print('sh: fathom: not found', file=sys.stderr); sys.exit(127)", r"no fathom there \(sh: fathom: not found"),
        ("sys.stderr.write('python3: No module named fathom'); sys.exit(1)", r"no fathom there \(python3: No module"),
        ("sys.stderr.write(SRUN); sys.exit(127)", r"no fathom there \(sh: 1: fathom: not found\)"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
        ("os.write(2, b'\\x1b[31mred\\n'); sys.exit(3)", r"ended with code 3: \[31mred$"),
    ],
)
def test_how_a_host_ended_is_said(end: str, why: str) -> None:
    with connected(end=end) as connection, pytest.raises(Lost, match=why):
        connection.hello()


def test_what_srun_says_of_itself_is_said_where_it_says_nothing_else() -> None:
    refused = "srun: error: Unable to create step for job 10: Requested node configuration is not available"
    assert last_words(f"{refused}\n\n") == refused
    assert last_words(f"Segmentation fault\n{refused}\nslurmstepd: error: gone") == "Segmentation fault"
    assert last_words("") == ""


def test_a_host_key_is_looked_at_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ssh").write_text("#!/bin/sh\necho 'Host key verification failed.' >&2\nexit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    connection = Connection("a", command_line("ssh", "a", "fathom"))
    with pytest.raises(Lost, match=r"^Host key verification failed \(ssh a by hand says more\)$"):
        connection.hello()
    connection.close(0.0)


def test_another_fathom_is_named() -> None:
    there = Hello(replace(MACHINES[LAPTOP], commit="abc"), "b", "2026", "0.2")
    assert there.difference("0.2", "abc") is None
    assert there.difference("0.2", None) is None  # installed here, and not a checkout
    assert there.difference("0.3", "abc") == "fathom 0.2 there, 0.3 here"
    assert there.difference("0.2", "def") == "fathom of commit abc there, def here"
    assert replace(there, version=None).difference("0.3", "abc") == "fathom of an older version there, 0.3 here"


def test_a_missing_ssh_is_one_line() -> None:
    with pytest.raises(Lost, match="cannot start no-such-program: No such file"):
        Connection("a", ["no-such-program"])


def test_another_version_is_named_and_not_guessed_at() -> None:
    unknown = said(hello={"machine": {"name": 1}, "boot": None, "now": ""})
    with connected(unknown) as connection, pytest.raises(Lost, match="a version that this one does not understand"):
        connection.hello()
    with connected(HELLO, said(planned=[{"workload": "vgg", "unheard": 1}])) as connection:
        connection.hello()
        with pytest.raises(Lost, match="its plan cannot be read"):
            connection.plan(names=["vgg"])
    with connected(HELLO, said(refused="no workload 'vgg'")) as connection:
        connection.hello()
        with pytest.raises(Refused, match="no workload"):
            connection.plan(names=["vgg"])


def hello(host_id: str | None, boot: str) -> Hello:
    return Hello(replace(MACHINES[LAPTOP], host_id=host_id), boot, "2026")


def test_machines_of_one_image_are_told_apart_by_their_boots() -> None:
    found = {"a": hello("same", "1"), "b": hello("same", "2"), "c": hello("other", "3")}
    ids = told_apart(found, lambda machine: False)
    assert ids["c"] is None
    assert len({ids["a"], ids["b"], None}) == 3
    assert told_apart(dict(reversed(found.items())), lambda machine: False) == ids  # whoever answers first
    alone = told_apart({"b": found["b"]}, lambda machine: machine.host_id == ids["b"])
    assert alone == {"b": ids["b"]}  # when resumed, and the other one does not answer
    assert told_apart({"b": found["b"]}, lambda machine: False) == {"b": None}


def test_a_machine_that_is_named_twice_is_measured_once() -> None:
    assert named_twice({"a": hello("x", "1"), "b": hello("x", "1"), "c": hello("x", "2")}) == {"b": "a"}


def test_a_record_carries_the_id_that_tells_its_machine_apart() -> None:
    with connected(HELLO, WHOLE) as connection:
        connection.hello()
        connection.host_id = "of-b"
        assert connection.run(SPEC).machine.host_id == "of-b"
