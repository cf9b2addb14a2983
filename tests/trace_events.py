"""Trace events for tests, with arguments as a file has them."""

from __future__ import annotations

from typing import Any

import msgspec

from fathom.trace.event import Event


def event(name: str, ts: float, dur: float, cat: str = "cpu_op", tid: int = 1, **args: Any) -> Event:
    """Arguments whose names have blanks are given as a dict: **{"Sequence number": 1}."""
    raw = msgspec.Raw(msgspec.json.encode(args)) if args else msgspec.Raw(b"")
    return Event(cat=cat, name=name, pid=1, tid=tid, ts=ts, dur=dur, args=raw)
