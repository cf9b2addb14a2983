"""JPEG decoding: images per second and core of our reader beside Pillow, simplejpeg, PyTurboJPEG and torchvision.

Run from the root of the checkout: PYTHONPATH=src python benchmarks/jpeg.py FOLDER --out FILE.json
FOLDER holds JPEG files, at any depth; without one, images of its own making are read. Libraries that are not installed
are named. All in one thread and one process, interleaved, from bytes in memory. "crop" is what training needs of an
image: a random crop, scaled to 224 x 224. Each library decodes at the smallest sufficient scale of libjpeg (1/1, 1/2,
1/4, 1/8), where it offers one, and Pillow resizes: all give the same image. "whole" decodes all pixels and resizes
nothing; ours is not among them, as it never does that. Time is CPU time, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fathom.analysis.statistics import median_interval
from fathom.data._jpeg import Box, decode, decoder
from fathom.data.imagenet import random_crop
from fathom.machine.host import fingerprint

SIDE = 224
SCALES = (8, 4, 2, 1)
PEERS = {"Pillow": "pillow", "simplejpeg": "simplejpeg", "PyTurboJPEG": "PyTurboJPEG", "torchvision": "torchvision"}
Pixels = NDArray[np.uint8]
Crop = Callable[[int, int], Box]
Task = Callable[[bytes, Crop], Any]


def scale_of(width: int, height: int, box: Box) -> int:
    """By how much libjpeg may reduce the image so that the box still has SIDE pixels."""
    wide, high = math.ceil(width * SIDE / (box[2] - box[0])), math.ceil(height * SIDE / (box[3] - box[1]))
    return next((scale for scale in SCALES if min(width // wide, height // high) >= scale), 1)


def resized(image: Image.Image, width: int, height: int, box: Box) -> Pixels:
    x, y = image.width / width, image.height / height
    scaled = box[0] * x, box[1] * y, min(box[2] * x, image.width), min(box[3] * y, image.height)
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, scaled))


def pillow() -> dict[str, Task]:
    def crop(content: bytes, choose: Crop) -> Pixels:
        image = Image.open(io.BytesIO(content))
        width, height = image.size
        box = choose(width, height)
        scale = scale_of(width, height, box)
        image.draft("RGB", (width // scale, height // scale))
        return resized(image.convert("RGB"), width, height, box)

    return {"crop": crop, "whole": lambda content, _: np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))}


def simplejpeg() -> dict[str, Task]:
    import simplejpeg as library

    def crop(content: bytes, choose: Crop) -> Pixels:
        height, width, *_ = library.decode_jpeg_header(content)
        box = choose(width, height)
        scale = scale_of(width, height, box)
        least = {"min_width": -(-width // scale), "min_height": -(-height // scale)} if scale > 1 else {}
        return resized(Image.fromarray(library.decode_jpeg(content, **least)), width, height, box)

    return {"crop": crop, "whole": lambda content, _: library.decode_jpeg(content)}


def turbojpeg() -> dict[str, Task]:
    from turbojpeg import TJPF_RGB, TurboJPEG

    library = TurboJPEG()  # the system's libturbojpeg: there is none in its wheel

    def crop(content: bytes, choose: Crop) -> Pixels:
        width, height, *_ = library.decode_header(content)
        box = choose(width, height)
        factor = (1, scale_of(width, height, box))
        pixels = library.decode(content, pixel_format=TJPF_RGB, scaling_factor=factor)
        return resized(Image.fromarray(pixels), width, height, box)

    return {"crop": crop, "whole": lambda content, _: library.decode(content, pixel_format=TJPF_RGB)}


def torchvision() -> dict[str, Task]:
    from torchvision.io import ImageReadMode, decode_jpeg

    def whole(content: bytes) -> Pixels:
        packed = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        pixels: Pixels = decode_jpeg(packed, mode=ImageReadMode.RGB).permute(1, 2, 0).numpy()
        return pixels

    def crop(content: bytes, choose: Crop) -> Pixels:
        pixels = whole(content)  # it has no scaled decoding
        height, width = pixels.shape[:2]
        return resized(Image.fromarray(np.ascontiguousarray(pixels)), width, height, choose(width, height))

    return {"crop": crop, "whole": lambda content, _: whole(content)}


def installed() -> tuple[dict[str, dict[str, Task]], dict[str, str]]:
    """What each library can do, and why the others are not there."""
    found: dict[str, dict[str, Task]] = {"fathom": {"crop": lambda content, choose: decode(content, choose, SIDE)}}
    missing = {}
    makers = (pillow, simplejpeg, turbojpeg, torchvision)
    for name, make in zip(PEERS, makers, strict=True):
        try:
            found[name] = make()
        except (ImportError, RuntimeError, OSError) as error:
            missing[name] = " ".join(str(error).split())[:200]
    return found, missing


def images(folder: Path | None) -> list[bytes]:
    if folder is None:
        return [made(number) for number in range(16)]
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not paths:
        raise SystemExit(f"{folder}: no JPEG file")
    return [path.read_bytes() for path in paths]


def made(number: int) -> bytes:
    """An image of a photograph's size with detail at many scales."""
    random = np.random.default_rng(number)
    layers = [random.integers(0, 256, (375 // scale, 500 // scale, 3), np.uint8) for scale in (3, 12, 50)]
    scaled = [np.asarray(Image.fromarray(layer).resize((500, 375), Image.Resampling.BICUBIC)) for layer in layers]
    file = io.BytesIO()
    Image.fromarray(np.mean(scaled, axis=0).astype(np.uint8)).save(file, "JPEG", quality=92)
    return file.getvalue()


def compare(contents: list[bytes], rounds: int) -> dict[str, Any]:
    """Every library in every round, in another order each time; the same crops for all."""
    libraries, missing = installed()
    times: dict[str, dict[str, list[float]]] = {"crop": {}, "whole": {}}
    order = np.random.default_rng(0)
    for number in range(rounds + 1):
        for index in order.permutation(len(libraries)):
            name = list(libraries)[index]
            for task, run in libraries[name].items():
                random = np.random.default_rng(number)
                begun = time.process_time()
                for content in contents:
                    run(content, partial(random_crop, random))
                seconds = (time.process_time() - begun) / len(contents)
                if number:  # the first round warms up
                    times[task].setdefault(name, []).append(seconds)
    return {"seconds_per_image": times, "missing": missing, "differences": differences(contents, libraries)}


def differences(contents: list[bytes], libraries: dict[str, dict[str, Task]]) -> dict[str, int]:
    """The largest difference of a pixel of a crop from ours."""
    found = {}
    for name, tasks in libraries.items():
        largest = 0
        for number, content in enumerate(contents):
            ours, theirs = (
                task(content, partial(random_crop, np.random.default_rng(number)))
                for task in (libraries["fathom"]["crop"], tasks["crop"])
            )
            largest = max(largest, int(np.abs(ours.astype(int) - theirs).max()))
        found[name] = largest
    return found


def shown(found: dict[str, Any]) -> None:
    print(f"our reader decodes with {decoder()}; largest difference of a pixel from ours in brackets")
    for task, times in found["seconds_per_image"].items():
        over = "   time over ours (within this process)" if "fathom" in times else ""
        print(f"\n{task:18} images/s and core{over}")
        for name, seconds in sorted(times.items(), key=lambda item: statistics.median(item[1])):
            ratio = ""
            if "fathom" in times:
                pairs = zip(seconds, times["fathom"], strict=True)
                ours = median_interval([[one / other for one, other in pairs]])
                ratio = f"{ours.median:14.3f} ({ours.low:.3f} to {ours.high:.3f})"
            print(f"{name:12} [{found['differences'][name]:3}] {1 / statistics.median(seconds):18.1f} {ratio}")
    for name, why in found["missing"].items():
        print(f"not installed: {name}: {why}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    contents = images(arguments.folder)
    found = compare(contents, arguments.rounds)
    shown(found)
    if arguments.out:
        size = {"images": len(contents), "mean_bytes": sum(map(len, contents)) / len(contents), "side": SIDE}
        peers = {name: _version(package) for name, package in PEERS.items()}
        machine = dataclasses.asdict(fingerprint())
        document = {"machine": machine, "peers": peers, "results": [{**size, "decoder": decoder(), **found}]}
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(document, indent=1))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
