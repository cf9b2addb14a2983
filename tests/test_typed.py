"""Records read by several threads at once: the hosts of a study answer at the same time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sample_records import op_row, record_of

READERS = """
import json, sys, threading
from fathom.core.record import Record
sys.setswitchinterval(1e-6)
text, together, read = sys.stdin.read(), threading.Barrier(8), []
def reader():
    data = json.loads(text)
    together.wait()
    read.append(Record.from_json(data).id)
threads = [threading.Thread(target=reader) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
print(len(read), len(set(read)))
"""


@pytest.mark.parametrize("attempt", range(8))  # without the lock, about half of the processes crash
def test_eight_threads_of_a_new_process_read_the_first_records(attempt: int, tmp_path: Path) -> None:
    """Of a new process: what is found out of a class is kept, and only the first look at it can collide."""
    text = json.dumps(record_of("vgg", [op_row("Conv2D", 1.0)]).to_json())
    command = [sys.executable, "-c", READERS]
    ended = subprocess.run(command, input=text, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (ended.returncode, ended.stdout.split()) == (0, ["8", "1"])
