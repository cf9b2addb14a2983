"""With this folder on PYTHONPATH, every Python process knows the faulty workload.

FATHOM_QUICK replaces measuring by steps that take so many seconds each; FATHOM_DIES_AT names a module whose import
kills the process; FATHOM_BOOT is the boot id of the machine that this process pretends to be on.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

import fathom.machine.host
import fathom.measure.loop
import fathom.workloads

fathom.workloads.__path__.append(str(Path(__file__).parent / "workloads"))
if "FATHOM_QUICK" in os.environ:
    import misdeeds

    fathom.measure.loop._measured = misdeeds.measured
if "FATHOM_BOOT" in os.environ:
    fathom.machine.host.boot_id = lambda *_: os.environ["FATHOM_BOOT"]


class Deadly:
    """A finder of modules that is asked before the others."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        if name == os.environ["FATHOM_DIES_AT"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return None


if "FATHOM_DIES_AT" in os.environ:
    sys.meta_path.insert(0, Deadly)
