"""Records of older schemas, brought to the next schema one at a time: the documents, before they are decoded."""

from __future__ import annotations

from typing import Any

from fathom.core.spec import RunSpec


def _from_schema_1(data: dict[str, Any]) -> dict[str, Any]:
    """Schema 1 did not know which op had launched a kernel; all else that is new may be absent."""
    profile = data.get("profile")
    if profile:
        profile = {**profile, "kernels": [{"op": "", "type": "", **kernel} for kernel in profile["kernels"]]}
    return {**data, "schema": 2, "profile": profile}


_SHARED = "other programs were on the GPU"  # how a note of schema 2 began that is a field now
_DEPARTURES = "; not as in the lesson: "  # what followed this in a protocol of schema 2 is a field now
_ITEMS = {("deepq", "infer"): "action", ("deepq", "train"): "transition"}


def _from_schema_2(data: dict[str, Any]) -> dict[str, Any]:
    """Schema 2 had facts in words: a note said that a GPU was shared, a protocol how a run departed from its recipe."""
    spec = RunSpec.from_json(data["spec"])
    learning = data.get("learning")
    if learning:
        protocol, _, departures = learning["protocol"].partition(_DEPARTURES)
        folder = spec.data.rpartition("/")[2] if spec.data else None
        learning = {key: value for key, value in learning.items() if key != "exhibits"} | {
            "protocol": protocol,
            "departures": departures.split(", ") if departures else [],
            "data": folder or spec.options.get("game", "synthetic data"),
            "split": "validation" if spec.options.get("judged_on") == "valid" else "test",
            "artifacts": learning.get("exhibits", []),
        }
    shared = any(note.startswith(_SHARED) for note in data.get("notes", []))
    changed = {
        "schema": 3,
        "spec": spec.to_json(),
        "learning": learning,
        "program": data.get("life"),
        "item": _ITEMS.get((spec.workload, spec.phase)),
        "disturbance": {"gpu_shared": True if shared else None},
    }
    return {key: value for key, value in data.items() if key != "life"} | changed


def _from_schema_3(data: dict[str, Any]) -> dict[str, Any]:
    """Schema 3 called a GPU's kernels, copies and memsets launches, which are calls."""

    def renamed(gpu: dict[str, Any] | None) -> dict[str, Any] | None:
        return gpu and {"activities" if name == "launches" else name: value for name, value in gpu.items()}

    profile = data.get("profile")
    if profile:
        profile = {**profile, "gpu": renamed(profile.get("gpu"))}
    return {**data, "schema": 4, "profile": profile, "program": renamed(data.get("program"))}


UPGRADES = {1: _from_schema_1, 2: _from_schema_2, 3: _from_schema_3}
