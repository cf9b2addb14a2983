"""Records on disk: whole or absent, never overwritten, and unreadable files are skipped."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fathom.core.errors import BadOption, DataError, UnknownName
from fathom.core.files import held
from fathom.core.fingerprint import Cpu, Machine
from fathom.core.record import ApiCall, GpuTime, Kernel, OpRow, Profile, Record, Sections
from fathom.core.spec import RunSpec
from fathom.core.store import LOCK, Store, read
from fathom.experiments.journal import Journal


def sample(**changes: object) -> Record:
    row = OpRow(
        op="aten::mm", type="MatMul", group="B", layer="encoder", role="fully connected", phase="forward",
        shapes="[2, 3] [3, 4]", calls=1.5, cpu_s=0.25, device_s=None, flop=48.0, bytes=104.0,
    )  # fmt: skip
    kernel = Kernel(name="gemm", kind="kernel", op="aten::mm", type="MatMul", calls=1, device_s=0.1)
    gpu = GpuTime(
        span_s=0.4, kernel_s=0.1, memcpy_s=0, memset_s=0, busy_s=0.1, starved_s=0.2, gaps=2, longest_gap_s=0.2,
        activities=1, api=[ApiCall(name="cudaLaunchKernel", calls=1, cpu_s=0.01)],
    )  # fmt: skip
    profile = Profile(
        rows=[row], kernels=[kernel], step_s=[0.3, 0.5],
        plain_step_s=[0.2, 0.2], outside_s=0.05, per_step_s={"MatMul": [0.2, 0.3]}, gpu=gpu,
    )  # fmt: skip
    record = Record(
        spec=RunSpec(workload="autoenc", options={"latent": 3}),
        machine=Machine(cpu=Cpu(name="a CPU", affinity=[0, 1], logical_cores=2)),
        device="cpu",
        outcome="ok",
        sections=Sections(init_s=1.0, wall_s=2.0),
        step_s=[0.1, 0.2],
        losses=[3.0, 2.0],
        profile=profile,
        program=gpu,
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    record = sample()
    Store(tmp_path).add(record)
    assert list(Store(tmp_path).records()) == [record]
    assert record.machine_label == "a CPU, 2 cores"
    assert record.profile is not None
    assert record.profile.slowdown == pytest.approx(2.0)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    record = sample()
    path = Store(tmp_path).add(record)
    before = path.read_bytes()
    with pytest.raises(BadOption, match="cannot write"):
        Store(tmp_path).add(replace(record, losses=[9.0]))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name], "no temporary file is left behind"


@pytest.mark.parametrize("call", ["fsync", "link"])
def test_a_full_disk_leaves_no_half_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(BadOption, match="No space left on device"):
        Store(tmp_path).add(sample())
    assert list(tmp_path.iterdir()) == []


CUT_OFF = """
import json, resource, signal, sys
from fathom.core.record import Record
from fathom.core.store import Store
signal.signal(signal.SIGXFSZ, signal.Handlers(int(sys.argv[2])))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
Store(sys.argv[1]).add(Record.from_json(json.load(sys.stdin)))
"""


@pytest.mark.parametrize("reaction", [signal.SIG_IGN, signal.SIG_DFL], ids=["an error", "a kill"])
def test_a_writer_cut_off_in_the_middle_leaves_no_half_record(tmp_path: Path, reaction: signal.Handlers) -> None:
    """A limit on the size of files stops the write itself."""
    kept = sample()
    path = Store(tmp_path).add(kept)
    command = [sys.executable, "-c", CUT_OFF, str(tmp_path), str(int(reaction))]
    done = subprocess.run(command, input=json.dumps(sample().to_json()), text=True, capture_output=True, check=False)
    assert done.returncode == (1 if reaction == signal.SIG_IGN else -signal.SIGXFSZ)
    assert ("File too large" in done.stderr) == (reaction == signal.SIG_IGN)
    assert list(tmp_path.glob("*.json")) == [path]
    assert (list(Store(tmp_path).records()), Store(tmp_path).unreadable()) == ([kept], [])


def test_unreadable_and_foreign_files_are_skipped_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    path = store.add(sample())
    document = sample().to_json()
    unreadable = {
        "newer": (json.dumps({**document, "schema": 99}), "schema 99"),
        "cut": (path.read_text()[:200], "JSON"),
        "list": ("[1, 2]", "not a Fathom record"),
        "odd": (json.dumps({**document, "surprise": 1}), "surprise"),
        "batchless": (json.dumps({**document, "spec": {"workload": "vgg", "batch": 0}}), "batch must be at least 1"),
        "empty": ("", "JSON"),
        "deep": ("[" * 100_000, "JSON"),
        "locked": (json.dumps(document), "Permission denied"),
    }
    for name, (content, _) in unreadable.items():
        (tmp_path / f"{name}.json").write_text(content)
    (tmp_path / "binary.json").write_bytes(bytes(range(256)))
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "dangling.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / ".half.json.1.part").write_text(path.read_text()[:100])
    really_open = os.open

    def guarded(path: Path, flags: int) -> int:
        if path.name == "locked.json":  # by hand, as root may read everything
            raise PermissionError(13, "Permission denied")
        return really_open(path, flags)

    monkeypatch.setattr(os, "open", guarded)
    assert len(list(store.records())) == 1
    told = dict(line.removeprefix(f"{tmp_path}/").split(".json: ", 1) for line in store.unreadable())
    assert told.keys() == unreadable.keys() | {"binary", "folder", "pipe", "dangling"}
    for name, why in {name: why for name, (_, why) in unreadable.items()}.items():
        assert why in told[name]
    assert told["folder"] == told["pipe"] == told["dangling"] == "not a file"
    assert all("\n" not in line for line in told.values())


WRONG = [None, True, 3, "x", ["y"], [1, "y"], {}, {"y": 1}]


@pytest.mark.parametrize("field", sample().to_json())
def test_a_field_that_holds_the_wrong_thing_is_harmless_or_named(tmp_path: Path, field: str) -> None:
    """Right names, wrong things: whatever is taken for a record can be sorted, placed and summed up."""
    Store(tmp_path).add(sample())
    for number, wrong in enumerate(WRONG):
        (tmp_path / f"{number}.json").write_text(json.dumps({**sample().to_json(), field: wrong}))
    store = Store(tmp_path)
    records = list(store.records())
    assert len(records) + len(store.unreadable()) == 1 + len(WRONG)
    for record in records:
        assert record.machine_label
        assert record.spec.id
        assert all(math.isfinite(value) for value in [*record.step_s, *record.warmup_s, record.items_per_step or 0])


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_what_is_wrong_deep_inside_is_named(wrong: object, tmp_path: Path) -> None:
    document = sample().to_json()
    document["profile"]["step_s"] = [0.1, wrong]
    (tmp_path / "one.json").write_text(json.dumps(document))
    if wrong == 3:
        assert len(list(Store(tmp_path).records())) == 1
    else:
        (told,) = Store(tmp_path).unreadable()
        assert "$.profile.step_s[1]" in told


def test_a_record_in_two_folders_is_one(tmp_path: Path) -> None:
    record = sample()
    for folder in ("a", "b"):
        Store(tmp_path / folder).add(record)
    assert len(read([tmp_path / "a", tmp_path / "b", tmp_path / "a"], lambda line: None)) == 1


def test_a_file_that_may_not_be_looked_at_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(self: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", locked)
    with pytest.raises(DataError, match="one.json: cannot be read: Permission denied"):
        read([tmp_path / "one.json"], lambda line: None)


def test_a_record_of_the_older_schema_is_read(tmp_path: Path) -> None:
    document = sample().to_json()
    for name in ("program", "item", "gpu_uuid", "disturbance"):
        del document[name]
    del document["profile"]["gpu"], document["sections"]["context_s"]
    del document["spec"]["cores"], document["spec"]["kind"], document["spec"]["engine"]
    for kernel in document["profile"]["kernels"]:
        del kernel["op"], kernel["type"]
    (tmp_path / "older.json").write_text(json.dumps({**document, "schema": 1}))
    (found,) = Store(tmp_path).records()
    before = sample().profile
    assert found.profile is not None
    assert before is not None
    assert found.profile.rows == before.rows
    assert (found.program, found.profile.gpu, found.profile.kernels[0].op) == (None, None, "")
    assert found.spec.id == sample().spec.id, "a new field with its default leaves the id of an old spec as it was"


def test_launches_of_schema_3_are_activities(tmp_path: Path) -> None:
    document = sample().to_json()
    for gpu in (document["profile"]["gpu"], document["program"]):
        gpu["launches"] = gpu.pop("activities")
        del gpu["tail_s"]
    del document["profile"]["light"], document["profile"]["free_step_s"]
    (tmp_path / "older.json").write_text(json.dumps({**document, "schema": 3}))
    (found,) = Store(tmp_path).records()
    assert found == replace(sample(), id=found.id, started=found.started), "and nothing else has changed"


def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder of records"):
        list(Store(tmp_path / "none").records())


def test_the_id_of_a_spec_depends_on_what_it_says_alone() -> None:
    spec = RunSpec(workload="vgg", options={"a": 1, "b": 2})
    assert spec.id == RunSpec(workload="vgg", options={"b": 2, "a": 1}).id
    assert spec.id != replace(spec, seed=1).id
    assert RunSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    with pytest.raises(UnknownName, match="did you mean preset"):
        RunSpec.from_json({"workload": "vgg", "prset": "tiny"})


def test_a_folder_of_data_is_one_however_it_was_typed() -> None:
    """A shell that completes names adds a slash."""
    typed = {RunSpec(workload="autoenc", data=data).id for data in ("mnist", "mnist/", "./mnist", "mnist//")}
    assert len(typed) == 1
    assert RunSpec(workload="autoenc", data="other/mnist").id not in typed


@pytest.mark.parametrize(
    ("workload", "name"),
    [
        ("autoenc", "autoenc"),
        ("my_package.my-module:Net", "my_package.my-module-Net"),
        ("../../etc/passwd", "etc-passwd"),
        ("a b/ü[x]*", "a-b-x"),
        ("::", "workload"),
        ("x" * 300, "x" * 80),
    ],
)
def test_the_name_of_a_file_is_safe_whatever_the_workload_is_called(tmp_path: Path, workload: str, name: str) -> None:
    store, other = Store(tmp_path), Store(tmp_path)
    record = sample(spec=RunSpec(workload=workload))
    path = store.add(record)
    assert path == tmp_path / f"{name}-train-{record.spec.id}-{record.id}.json"
    assert other.claim(record.spec) == (record, path), "another process finds it by its spec"


def test_a_folder_with_the_lock_file_of_an_older_version_is_read_and_written(tmp_path: Path) -> None:
    (tmp_path / ".turn").touch()
    store = Store(tmp_path)
    with store.lock(lambda: None):
        store.add(sample())
    assert (len(list(store.records())), store.unreadable()) == (1, [])


def test_a_lock_that_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "below"
    for path, lock in {
        below / ".lock": Store(below).lock(lambda: None),
        below / "capping.lock": Journal(below / "capping.json").locked(),
    }.items():
        with pytest.raises(BadOption, match="Not a directory") as raised, lock:
            pytest.fail("not locked")
        assert str(raised.value) == f"cannot write {path}: Not a directory"


def test_a_file_system_without_hard_links_takes_records_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    record = sample()
    path = Store(tmp_path).add(record)
    assert list(Store(tmp_path).records()) == [record]
    with pytest.raises(BadOption, match="cannot write"):
        Store(tmp_path).add(replace(record, losses=[9.0]))
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_one_lock_may_hold_for_two_folders(tmp_path: Path) -> None:
    """Warm-up runs are kept apart, and would slow the runs of the folder that they warm up for."""
    waited: list[str] = []
    beside = Store(tmp_path / "warm-up", lock_folder=tmp_path)
    with held(tmp_path / LOCK) as own, contextlib.suppress(TimeoutError):
        assert own

        def stop() -> None:
            waited.append("waits")
            raise TimeoutError

        with beside.lock(stop):
            waited.append("runs")
    assert waited == ["waits"]


def test_of_two_that_ask_for_a_file_one_has_it(tmp_path: Path) -> None:
    with held(tmp_path / "lock") as first, held(tmp_path / "lock") as second:
        assert (first, second) == (True, False)
    with held(tmp_path / "lock") as again:
        assert again
