"""What a workload may do to the process it runs in, and a stand-in for measuring that needs milliseconds, no torch."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from fathom.core.events import OnProgress
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.machine.host import fingerprint

SLEEPER = (  # deaf to signals, for ten minutes or until the tests are over, however they end
    "import os, signal, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; "
    "[(time.sleep(1), os.kill(int(os.environ['FATHOM_TESTS']), 0)) for _ in range(600)]"
)


def measured(spec: RunSpec, progress: OnProgress) -> Record:
    """In the place of measure._measured: steps that sleep, and after the first the misdeed that the spec asks for."""
    options, pause_s = dict(spec.options), float(os.environ["FATHOM_QUICK"])
    for step in range(spec.steps):
        time.sleep(pause_s)
        progress(step + 1, spec.steps)
        if step == 0 and "misdeed" in options:
            MISDEEDS[options["misdeed"]]()
    return Record(
        spec=spec,
        machine=fingerprint(),
        device="cpu",
        outcome="ok",
        step_s=[0.001] * spec.steps,
        items_per_step=1,
        answers=["a long answer"] * options.get("answers", 0),
    )


def report_pipe() -> int:
    return int(sys.argv[1])


def raises() -> None:
    raise RuntimeError("the third [/bold] wheel\nand more")


def hangs() -> None:
    threading.Event().wait()


def exits() -> None:
    sys.exit("had enough")


def slips_away() -> None:
    os._exit(0)


def touches_nothing() -> None:
    ctypes.string_at(0)


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def runs_out_of_memory() -> None:
    """Not even the interpreter's own allocations are granted: the process must end by itself, somehow."""
    resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))
    _ = [bytearray(1 << 20) for _ in range(1000)]


def babbles() -> None:
    """On both outputs and on the report pipe: bytes of every value, half a message, messages that are none."""
    noise = bytes(range(256)) * 64
    for descriptor in (1, 2, report_pipe()):
        os.write(descriptor, noise)
    for line in (
        b'{"progress": "much"}', b'{"progress": [1]}', b'{"refused": 3}', b'{"record": {"schema": []}}',
        b'{"record": null}', b'[1, 2]', b'"progress"', b"[" * 50_000, b'{"progress": [1, ',
    ):  # fmt: skip
        os.write(report_pipe(), b"\n" + line)


def is_of_another_time() -> None:
    os.write(report_pipe(), b'{"record": {"schema": 99, "spec": {}, "outcome": "ok"}}\n')
    os._exit(0)


def prints_without_end() -> None:
    with contextlib.suppress(OSError):
        for _ in range(256):
            os.write(1, b"x" * (1 << 20))
    os._exit(3)


def shuts_up() -> None:
    """Ends the report early and goes on for ever."""
    os.close(report_pipe())
    hangs()


def never_ends() -> None:
    """Measures well and hangs in the interpreter's end."""
    atexit.register(hangs)


def leaves_a_child() -> None:
    """In a session of its own, deaf to signals, with the report pipe and the outputs open."""
    subprocess.Popen([sys.executable, "-c", SLEEPER], start_new_session=True, pass_fds=[report_pipe()])


def leaves_a_daemon() -> None:
    """Forked twice, so that its parent is gone while the worker goes on."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sys.executable, [sys.executable, "-c", SLEEPER])
        os._exit(0)


def leaves_a_daemon_and_hangs() -> None:
    leaves_a_daemon()
    hangs()


def goes_on_twice() -> None:
    """Forks in the middle: both think that they are the worker, and both will report."""
    os.fork()


def multiplies() -> None:
    """Thirty generations, every third in a session of its own, and the worker itself is gone at once."""
    worker = os.getpid()
    for generation in range(30):
        if os.fork():
            break
        if generation % 3 == 0:
            os.setsid()
    if os.getpid() == worker:
        os._exit(0)
    hangs()


MISDEEDS: dict[str, Callable[[], None]] = {
    deed.__name__: deed
    for deed in (
        raises, hangs, exits, slips_away, touches_nothing, is_killed, runs_out_of_memory, babbles, prints_without_end,
        is_of_another_time,
        shuts_up, never_ends, leaves_a_child, leaves_a_daemon, leaves_a_daemon_and_hangs, goes_on_twice, multiplies,
    )
}  # fmt: skip
