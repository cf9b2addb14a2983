"""Ctrl-C and SIGTERM at chosen moments: one line and exit code 130 or 143, whatever is imported or swallowed meanwhile.

benchmarks/signals.py sends them at hundreds of random moments.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from killing import environment

import fathom
from fathom.core.spec import RunSpec
from fathom.experiments.isolate import isolated

SOURCES = Path(fathom.__file__).parents[1]
HOOK = """
import os, sys

number, _, module = os.environ["FATHOM_SIGNAL_AT"].partition(":")

class Signaller:  # a finder of modules that is asked before the others
    def find_spec(name, path, target=None):
        if name == module:
            os.kill(os.getpid(), int(number))

sys.meta_path.insert(0, Signaller)
"""
LINES = {signal.SIGINT: "fathom: interrupted\n", signal.SIGTERM: "fathom: ended by SIGTERM\n"}
ON_ANY = ["study", "autoenc", "--preset", "tiny"]  # on the devices that torch finds
MOMENTS = [  # the module whose import the signal comes with
    ("fathom.cli.streams", ["list"]),  # the first after the handlers are there
    ("typer", ["list"]),
    ("fathom.cli.commands.list", ["list"]),
    ("rich.table", ["doctor"]),
    ("numpy", ["analyse", "sections", "--published"]),
    ("numpy.exceptions", ON_ANY),  # from within the initialisation of an extension module
    ("numpy.dtypes", ON_ANY),
    ("torch", ON_ANY),
    ("torch._C", ON_ANY),
    ("torch.storage", ON_ANY),
    ("torch.nn", ["repeat", "autoenc", "--runs", "1"]),
    ("torch.optim", ["learn", "autoenc", "--preset", "tiny"]),
]


def _as_at_a_terminal() -> None:
    """Tests that are run in the background have Ctrl-C ignored, and so would the command, as it should."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def hooked(tmp_path: Path) -> str:
    """A PYTHONPATH with which a process sends itself a signal at the import that FATHOM_SIGNAL_AT=2:torch names."""
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    return os.pathsep.join([str(tmp_path), str(SOURCES)])


def ran(*words: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=environment(**{"PYTHONPATH": str(SOURCES), **variables}),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=_as_at_a_terminal,
    )


@pytest.mark.parametrize("number", LINES, ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize(("module", "command"), MOMENTS, ids=[module for module, _ in MOMENTS])
def test_a_signal_while_a_module_is_imported(
    module: str, command: list[str], number: signal.Signals, hooked: str, tmp_path: Path
) -> None:
    variables = {"PYTHONPATH": hooked, "FATHOM_SIGNAL_AT": f"{number:d}:{module}"}
    done = ran("-m", "fathom", *command, cwd=tmp_path, **variables)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", LINES[number])


def test_the_console_script_handles_signals_before_it_loads_the_command_line(hooked: str, tmp_path: Path) -> None:
    script = "import re, sys; from fathom.cli.main import main; sys.exit(main())"
    variables = {"PYTHONPATH": hooked, "FATHOM_SIGNAL_AT": "2:fathom.cli.streams"}
    done = ran("-c", script, "list", cwd=tmp_path, **variables)
    assert (done.returncode, done.stderr) == (130, "fathom: interrupted\n")


def test_little_is_imported_before_signals_are_handled() -> None:
    script = "import sys; import fathom.cli.main; print(*(name for name in sys.modules if name.startswith('fathom')))"
    done = ran("-c", script + "; print('typing' in sys.modules)")
    assert done.stdout.splitlines() == ["fathom fathom.cli fathom.core fathom.core.stopping fathom.cli.main", "False"]


@pytest.mark.parametrize("number", LINES, ids=["SIGINT", "SIGTERM"])
def test_a_worker_that_is_signalled_while_it_imports_torch_is_a_failed_record(
    number: signal.Signals, hooked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", hooked)
    monkeypatch.setenv("FATHOM_SIGNAL_AT", f"{number:d}:torch._C")
    record = isolated(RunSpec(workload="autoenc", preset="tiny", device="cpu"))
    assert (record.outcome, record.reason) == ("failed", f"the worker was killed by {number.name}")


PRELUDE = """
import os, signal, sys
from fathom.core import stopping
from fathom.core.stopping import Stopped, unwinding
stopping.install()
stopping.AGAIN_S = 600.0  # two signals of a script are one, however slow the machine
def hit(number=signal.SIGINT):
    os.kill(os.getpid(), number)
class Deaf:
    def __del__(self):
        hit()  # an exception from here is printed and forgotten
"""
SCRIPTS = {  # -> exit code, and what is printed
    "hit()": (130, ""),
    "try: hit()\nexcept BaseException: print('caught')": (130, ""),
    "try:\n with unwinding(): hit()\nexcept Stopped as stop: print('raised', *stop.args)": (0, "raised 2\n"),
    "try:\n with unwinding(): hit()\nfinally: print('released', flush=True)": (1, "released\n"),
    "with unwinding(): Deaf()\nprint('went on')": (130, ""),
    "with unwinding():\n try: hit()\n except BaseException: pass\nprint('went on')": (130, ""),
    "try:\n with unwinding():\n  Deaf()\n  stopping.check()\nexcept Stopped: print('raised')": (0, "raised\n"),
    "with unwinding():\n try: hit()\n except Stopped: hit(); hit(); print('once', flush=True)": (130, "once\n"),
    "signal.signal(2, signal.SIG_IGN); stopping.install(); hit(); print('ignored')": (0, "ignored\n"),
    "os.close(2); hit()": (130, ""),
    "with unwinding(b'cursor'): exec(\"import module_that_signals\")": (130, ""),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_signal_is_answered_once_and_never_lost(script: str, tmp_path: Path) -> None:
    (tmp_path / "module_that_signals.py").write_text("import os\nos.kill(os.getpid(), 2)\n")
    done = ran("-c", PRELUDE + script, PYTHONPATH=os.pathsep.join([str(SOURCES), str(tmp_path)]))
    code, printed = SCRIPTS[script]
    assert (done.returncode, done.stdout) == (code, printed)
    if code == 130 and "close" not in script:
        assert done.stderr.splitlines()[-1].removeprefix("cursor") == "fathom: interrupted"
        assert done.stderr.startswith("cursor") == ("cursor" in script)


def test_a_second_signal_later_ends_what_does_not_end_by_itself() -> None:
    script = "stopping.AGAIN_S = 0\nwith unwinding():\n try: hit()\n except Stopped: hit(signal.SIGTERM); print('late')"
    done = ran("-c", PRELUDE + script)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "fathom: ended by SIGTERM\n")


def test_a_closed_stream_is_not_replaced_by_a_file_that_is_opened_later(tmp_path: Path) -> None:
    """Else what is said on stderr would be written into a record."""
    script = (
        "os.close(2); stopping.install(); file = open(sys.argv[1], 'w'); os.write(2, b'said'); print(file.fileno())"
    )
    done = ran("-c", PRELUDE + script, str(tmp_path / "record"))
    assert int(done.stdout) > 2
    assert (tmp_path / "record").read_text() == ""
