"""ssh and srun as a test has them: runs the command on a "host" of this machine, or fails as the host is told to.

FAKE_HOSTS says by host what is wrong with it, as JSON. A host is a HOME and a boot id of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

MOTD = "Welcome! fathom-agent {not JSON}\nfathom-agent is not said by this line either\n{}\nno newline at the end"


def asked() -> tuple[str, str]:
    """Host and command, from the arguments of ssh or of srun."""
    arguments = sys.argv[1:]
    with Path(os.environ["FAKE_LOG"]).open("a") as log:
        log.write(json.dumps(arguments) + "\n")
    if "--" in arguments:
        host, command = arguments[arguments.index("--") + 1 :]
        return host, command
    return next(word for word in arguments if word.startswith("--nodelist=")).partition("=")[2], arguments[-1]


def main() -> None:
    host, command = asked()
    fault, _, after = json.loads(os.environ.get("FAKE_HOSTS", "{}")).get(host, "").partition(":")
    if fault == "refuses":
        sys.exit(_said(f"ssh: connect to host {host} port 22: Connection refused", 255))
    if fault == "has no fathom":
        sys.exit(_said("sh: 1: fathom: not found", 127))
    if fault == "hangs":
        signal.pause()
    if fault == "greets":
        print(MOTD, end="", flush=True)
    boot = after if fault == "is" else host
    home = Path(os.environ["HOME"]) / boot
    home.mkdir(exist_ok=True)
    environment = os.environ | {"HOME": str(home), "FATHOM_BOOT": boot, "XDG_STATE_HOME": str(home / "state")}
    if fault not in ("dies", "halves"):
        os.execvpe("sh", ["sh", "-c", command], environment)
    _cut(command, environment, int(after), halves=fault == "halves")


def _said(line: str, code: int) -> int:
    print(line, file=sys.stderr)
    return code


def _cut(command: str, environment: dict[str, str], records: int, *, halves: bool) -> None:
    """Passes on so many records, or half of the next one, and is killed, as the agent is."""
    with subprocess.Popen(["sh", "-c", f"exec {command}"], env=environment, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        for line in agent.stdout:
            if b'{"record"' in line:
                records -= 1
            if records < 0:
                sys.stdout.buffer.write(line[: len(line) // 2 if halves else 0])
                sys.stdout.buffer.flush()
                agent.kill()
                os.kill(os.getpid(), signal.SIGKILL)
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
