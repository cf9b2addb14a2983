"""stdout and stderr in another encoding, closed or full, and a working directory that is gone: no traceback for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from sample_records import failed_record, record_of

import fathom
from fathom.core.store import Store

SOURCES = Path(fathom.__file__).parents[1]
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
NONE: Mapping[str, str] = {}
FULL = "fathom: cannot write the output: No space left on device\n"
DELETED = "fathom: the working directory has been deleted; change to one that exists\n"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    store = Store(folder)
    for made in (record_of("autoenc"), record_of("memnet"), failed_record(reason="µ, 3 × 10⁻⁹ and ü")):
        store.add(made)
    return folder


def ran(
    *words: str, cwd: Path | None = None, shell: str = "", variables: Mapping[str, str] = NONE
) -> subprocess.CompletedProcess[str]:
    """The command, with redirections of a shell."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("LC_", "LANG", "PYTHON"))}
    env |= {"PYTHONPATH": str(SOURCES), **variables}
    command = ["sh", "-c", f'"$@" {shell}', "sh", sys.executable, "-m", "fathom", *words]
    return subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, encoding="utf-8", errors="replace", check=False
    )


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["analyse", "breakdown"], ASCII),
        (["analyse", "stationarity"], {"PYTHONIOENCODING": "ascii"}),
        (["analyse", "suite"], {"PYTHONIOENCODING": "latin-1"}),
    ],
)
def test_every_character_is_printed_in_some_way(words: list[str], variables: dict[str, str], records: Path) -> None:
    done = ran(*words, str(records), variables=variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("\n* " in done.stdout) == ("latin-1" not in variables.values()), "a note begins with a dot"


def test_characters_that_an_encoding_has_not_are_spelt(records: Path) -> None:
    done = ran("compare", str(records), str(records), "vgg", variables=ASCII)
    assert "Traceback" not in done.stderr
    assert done.stderr.isascii()
    assert "has only failed runs (u, 3 x 10^-9 and \\xfc)" in done.stderr


def test_a_file_name_that_is_no_text_is_shown_by_its_bytes(tmp_path: Path) -> None:
    done = ran("analyse", "breakdown", os.fsdecode(b"no\xff"), cwd=tmp_path, variables={"PYTHONUTF8": "1"})
    assert (done.returncode, done.stderr) == (2, "fathom: no\\xff: no such folder of records\n")


def test_control_codes_do_not_reach_the_terminal() -> None:
    done = ran("analyse", "breakdown", "\x1b[31mred")
    assert (done.returncode, done.stderr) == (2, "fathom: \\x1b[31mred: no such folder of records\n")


@pytest.mark.parametrize(
    ("words", "unbuffered"),
    [(["list"], ""), (["list"], "1"), (["show", "vgg", "--json"], ""), (["--help"], ""), (["--version"], "1")],
)
def test_a_full_device_is_one_line(words: list[str], unbuffered: str) -> None:
    done = ran(*words, shell=">/dev/full", variables={"PYTHONUNBUFFERED": unbuffered})
    assert (done.returncode, done.stderr) == (2, FULL)


@pytest.mark.parametrize(("words", "code"), [(["list"], 0), (["lst"], 2)])
def test_a_stderr_that_takes_nothing_changes_no_exit_code(words: list[str], code: int) -> None:
    for shell in ("2>/dev/full", "2>&-", ">&- 2>&- <&-"):
        assert ran(*words, shell=shell).returncode == code


def test_a_reader_that_went_away_is_no_error() -> None:
    done = ran("list", shell='| true; echo "told nothing"')
    assert (done.stdout, done.stderr) == ("told nothing\n", "")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["list"], 0),
        (["analyse", "breakdown", "--published"], 0),
        (["run", "autoenc", "--preset", "tiny"], 2),
        (["run", "package.module:Class"], 2),
        (["study", "autoenc", "--device", "cpu"], 2),  # torch itself cannot be imported there
        (["study", "autoenc"], 2),
        (["engines", "memnet"], 2),
        (["learn", "memnet"], 2),
        (["feed", "memnet"], 2),
        (["report", "records"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_working_directory_that_was_deleted(words: list[str], code: int, tmp_path: Path) -> None:
    """As a job finds it whose folder was cleaned up under it."""
    folder = tmp_path / "gone"
    folder.mkdir()
    script = 'rmdir "$PWD"; exec "$@"'
    env = {**os.environ, "PYTHONPATH": str(SOURCES)}
    command = ["sh", "-c", script, "sh", sys.executable, "-m", "fathom", *words]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") == (code == 2)
    assert done.stderr.startswith("fathom: " * (code == 2))


def test_a_working_directory_that_was_deleted_is_named_as_such(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    command = ["sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh", sys.executable, "-m", "fathom", "profile", "a.b:c"]
    env = {**os.environ, "PYTHONPATH": str(SOURCES)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, DELETED)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output_that_nobody_reads_ends_the_command_without_a_word(stream: str) -> None:
    """As `fathom list | head` does: like other programs, by SIGPIPE."""
    words = {"stdout": ["list"], "stderr": ["run", "no-such-workload"]}[stream]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        out, err = (writer if name == stream else subprocess.PIPE for name in ("stdout", "stderr"))
        done = subprocess.run([sys.executable, "-m", "fathom", *words], check=False, stdout=out, stderr=err)
    finally:
        os.close(writer)
    assert (done.returncode, done.stdout or b"", done.stderr or b"") == (-signal.SIGPIPE, b"", b"")


def test_a_broken_pipe_that_is_not_the_output_is_an_error_and_ends_nothing() -> None:
    code = (
        "import os; from fathom.core import stopping; stopping.install()\n"
        "reader, writer = os.pipe(); os.close(reader)\n"
        "try: os.write(writer, b'to a process that has died')\n"
        "except BrokenPipeError: print('told')"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"told\n"
