"""Inference on the CPU: our engines beside ONNX Runtime and OpenVINO run bare on the same exported graph, interleaved.

Run from the root of the checkout, with the extras onnxruntime and openvino:
PYTHONPATH=src python benchmarks/inference_engines.py --threads 2 --out FILE.json
Bare is what a user would write: the runtime's own call on NumPy arrays that are ready before the clock starts, but for
random numbers (autoenc's latents), which have to be drawn anew for every batch and are inputs of the graph. An engine
takes the batch as torch tensors and gives torch tensors. All contenders of a workload take turns in one process,
in an order that rotates. The ratio is that of the fastest engine to the fastest bare runtime, turn by turn; its 95 %
interval holds within that process. A second bare session of each runtime is timed against the first: that ratio is the
noise.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from fathom.analysis.statistics import median_interval
from fathom.core import plugins
from fathom.core.errors import FathomError
from fathom.core.spec import RunSpec
from fathom.data.base import Batch
from fathom.engine.base import engine_class
from fathom.engine.engines import onnxruntime, openvino
from fathom.engine.export import Graph, export
from fathom.engine.session import Session
from fathom.machine.host import fingerprint
from fathom.workloads.base import Output

ENGINES = ("eager", "compile", "onnxruntime", "openvino")
RUNTIMES = ("onnxruntime", "openvino")
TURN_S = 0.3  # about how long one contender's turn lasts

Call = Callable[[], Any]
Prepare = Callable[[Batch], Call]  # untimed: from a batch to what is timed


def compare(name: str, preset: str, turns: int, threads: int | None) -> dict[str, Any]:
    spec = RunSpec(workload=name, phase="infer", preset=preset, device="cpu", seed=1, threads=threads)
    with Session(spec).setup() as session:
        contenders, refused = _contenders(session)
        found: dict[str, Any] = {"workload": name, "preset": preset, "refused": refused}
        first_s = {each: _timed(session, prepare, 1) for each, prepare in contenders.items()}
        steps = {each: max(1, round(TURN_S / _timed(session, prepare, 2))) for each, prepare in contenders.items()}
        times: dict[str, list[float]] = {each: [] for each in contenders}
        order = list(contenders)
        for _ in range(turns):
            for each in order:
                times[each].append(_timed(session, contenders[each], steps[each]))
            order.append(order.pop(0))
    return found | {"first_s": first_s, "step_s": times} | _verdict(times)


def _contenders(session: Session) -> tuple[dict[str, Prepare], dict[str, str]]:
    """Engines and bare runtimes by name, and why others are missing."""
    contenders: dict[str, Prepare] = {}
    refused: dict[str, str] = {}
    for name in ENGINES:
        engine = engine_class(name)
        if why := engine.refusal(session.workload, session.device, "infer"):
            refused[name] = why
            continue
        contenders[name] = _engine_call(engine(session.state, session.engine._loss, session.engine._infer).infer)
    try:
        graph = export(session.state.model, session.engine._infer, next(session.state.batches))
    except FathomError as error:
        return contenders, refused | dict.fromkeys((f"{each} bare" for each in RUNTIMES), str(error))
    for number in (1, 2):
        contenders[f"onnxruntime bare {number}"] = _onnxruntime_call(graph)
        contenders[f"openvino bare {number}"] = _openvino_call(graph)
    return contenders, refused


def _engine_call(infer: Callable[[Batch], Output]) -> Prepare:
    return lambda batch: lambda: infer(batch)


def _onnxruntime_call(graph: Graph) -> Prepare:
    session = onnxruntime.session_of(graph)

    def prepare(batch: Batch) -> Call:
        arrays = _arrays(graph, batch)
        return lambda: session.run(None, dict(zip(graph.inputs, arrays(), strict=True)))

    return prepare


def _openvino_call(graph: Graph) -> Prepare:
    compiled = openvino.compiled(graph)

    def prepare(batch: Batch) -> Call:
        arrays = _arrays(graph, batch)
        return lambda: compiled(arrays())

    return prepare


def _arrays(graph: Graph, batch: Batch) -> Callable[[], list[Any]]:
    """The graph's inputs: columns are ready, random numbers are drawn when it is called."""
    columns = [batch[name].numpy() for name in graph.columns]
    return lambda: [*columns, *(draw().numpy() for draw in graph.noise)]


def _timed(session: Session, prepare: Prepare, steps: int) -> float:
    """The median of so many steps."""
    seconds = []
    for _ in range(steps):
        call = prepare(next(session.state.batches))
        begun = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begun)
    return median(seconds)


def _verdict(times: dict[str, list[float]]) -> dict[str, Any]:
    """The fastest of either kind, their ratio, and the noise."""
    ours = min((each for each in times if "bare" not in each), key=lambda each: median(times[each]))
    bare = [each for each in times if "bare" in each]
    if not bare:
        return {"best": ours}
    other = min((each for each in bare if each.endswith("1")), key=lambda each: median(times[each]))
    again = other.replace("bare 1", "bare 2")
    return {"best": ours, "best_bare": other, "ratio": _ratio(times, ours, other), "noise": _ratio(times, again, other)}


def _ratio(times: dict[str, list[float]], one: str, other: str) -> list[float]:
    """The median over turns, and its interval."""
    found = median_interval([[a / b for a, b in zip(times[one], times[other], strict=True)]])
    return [found.median, found.low, found.high]


def _line(found: dict[str, Any]) -> str:
    steps = ", ".join(f"{each} {1e3 * median(values):.3g}" for each, values in found["step_s"].items())
    refused = "".join(f"; {each} {why}" for each, why in found["refused"].items())
    if "ratio" not in found:
        return f"{found['workload']}: ms a step: {steps}{refused}"
    ratio, noise = ("{:.3f} ({:.3f} to {:.3f})".format(*found[key]) for key in ("ratio", "noise"))
    compared = f"{found['best']} over {found['best_bare']}: {ratio}, noise {noise}"
    return f"{found['workload']}: {compared}; ms a step: {steps}{refused}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=plugins.names("workloads"))
    parser.add_argument("--preset", default="small")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--here", action="store_true", help="one workload, in this process, as JSON")
    arguments = parser.parse_args()
    if arguments.here:
        print(json.dumps(compare(arguments.names[0], arguments.preset, arguments.turns, arguments.threads)))
        return
    found = []
    for name in arguments.names:
        command = [sys.executable, __file__, name, "--here", "--preset", arguments.preset, "--turns", arguments.turns]
        command += ["--threads", arguments.threads] if arguments.threads else []
        done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        print(_line(found[-1]), flush=True)
        if arguments.out:
            document = {"machine": dataclasses.asdict(fingerprint()), "results": found}
            arguments.out.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
