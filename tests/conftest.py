"""What tests share: the folder of real data, where there is one, and the command line as a user types it."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fathom.cli import main
from fathom.core import stopping
from fathom.machine.host import usable_cores

MOST_PROCESSES = 8  # each of them loads torch
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SLOW_FILES = (  # the slowest first: one that begins last keeps one process busy while the others have nothing to do
    "test_faulty_ranks", "test_launch", "test_exported_engines", "test_engines", "test_calibrate", "test_faults",
    "test_simulate", "test_own_worker", "test_learn_images", "test_report_browser", "test_golden_answers",
    "test_capping_worker", "test_example_package", "test_contract", "test_statistics", "test_docs_numbers",
    "test_capping_crashes", "test_rank_training", "test_streams", "test_mutated_records", "test_study_hosts",
    "test_intervals", "test_pipeline", "test_strategies", "test_compare", "test_kills", "test_own",
    "test_public_models", "test_seq2seq", "test_learn_command", "test_frameworks", "test_catalogue",
    "test_engines_command", "test_learn_deepq", "test_nodes", "test_tensor_parallel", "test_stopping",
    "test_isolate", "test_learn_seq2seq", "test_report",
)  # fmt: skip
QUIET = ("headless=new", "no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking",
         "disable-component-update", "disable-sync", "hide-scrollbars", "force-prefers-reduced-motion")  # fmt: skip

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch is loaded, and for the workers that tests start
    # OpenMP's threads spin while they wait: twice as many as cores, and the suite takes several times as long.
    threads = max(1, usable_cores() // int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow files first; the others as they were."""
    order = {name: number for number, name in enumerate(SLOW_FILES)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """What -n auto means: one process for each core that we may use, which in a container may be few of many."""
    return min(usable_cores(), MOST_PROCESSES)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """The marker gpu is all that a test needs to be skipped where there is none."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device on this machine")


@pytest.fixture
def on_the_laptop(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine is the one of the sample records: what a test's workers pretend to measure is measured here."""
    from sample_records import LAPTOP, MACHINES  # loads NumPy, which reads OMP_NUM_THREADS

    for module in (
        "fathom.cli.commands._running",
        "fathom.experiments.isolate",
    ):
        monkeypatch.setattr(f"{module}.fingerprint", lambda: MACHINES[LAPTOP])


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium without a window, which logs its console and every request; a visible skip without one."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: no browser test")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if not program or not driver:
        pytest.skip("Chromium or chromedriver is not installed: no browser test")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*QUIET, f"user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield started
    started.quit()


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiles of as few steps as will do: what is counted in a step does not need many of them."""
    from fathom.measure import profiling
    from fathom.measure.own import profile as own_profile

    for name, value in {"MIN_STEPS": 2, "PLAIN_S": 0.0, "BUDGET_S": 0.0, "LIGHT_S": 0.0}.items():
        monkeypatch.setattr(profiling, name, value)
    monkeypatch.setattr(own_profile, "WARMUP", 1)
    monkeypatch.setattr(profiling, "ceilings", lambda device, precision: (1e12, 1e11))


def real_data(name: str) -> Path:
    """A real data set below FATHOM_DATA, or a visible skip."""
    parent = os.environ.get("FATHOM_DATA")
    if not parent:
        pytest.skip(f"FATHOM_DATA is not set: no real {name} to read")
    folder = Path(parent) / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    return folder


HANDLERS: dict[signal.Signals, Any] = {  # as Python has them when it starts
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}


@pytest.fixture(autouse=True)
def _signals_are_left_as_they_were() -> Iterator[None]:
    """Tests share a process: one that leaves a handler, a blocked or a pending signal would end a later one."""
    _reset_signals()
    stack = _signal_stack()
    yield
    left = _changed_signals()
    _reset_signals()
    _signal_stack(stack)
    assert not left, f"left behind: {', '.join(left)}"


def _changed_signals() -> list[str]:
    blocked, pending = signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.sigpending()
    found = [f"{number.name} blocked" for number in HANDLERS if number in blocked]
    found += [f"{number.name} pending" for number in HANDLERS if number in pending]
    found += [f"a handler of {number.name}" for number, own in HANDLERS.items() if signal.getsignal(number) != own]
    return found + ["something to release"] * bool(stopping._state.releasing)


def _reset_signals() -> None:
    for number in HANDLERS:
        signal.signal(number, signal.SIG_IGN)  # which discards what is pending
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLERS)
    for number, handler in HANDLERS.items():
        signal.signal(number, handler)
    stopping._state.number, stopping._state.releasing = None, []


class _Stack(ctypes.Structure):
    """stack_t of Linux."""

    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def _signal_stack(new: _Stack | None = None) -> _Stack | None:
    """The stack that signal handlers run on, and from now on the new one.

    OpenVINO takes one of its own that has room for one handler where AMX registers are saved with it: two signals at
    once then end the process.
    """
    if sys.platform != "linux":
        return None
    before = _Stack()
    ctypes.CDLL(None).sigaltstack(new and ctypes.byref(new), ctypes.byref(before))
    return before


def fathom(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """The exit code of the command line; what it printed is pytest's to capture."""
    monkeypatch.setattr(sys, "argv", ["fathom", *map(str, arguments)])
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(SystemExit) as stopped:
            main.main()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert isinstance(stopped.value.code, int)
    return stopped.value.code
