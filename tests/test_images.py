"""The three ImageNet networks: the published layers, counts and starting weights, to the last parameter."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from fathom.core.errors import BadOption, FathomError
from fathom.data import imagenet
from fathom.data.base import InMemory
from fathom.workloads._image_classifier import ImageClassifier, Normalise
from fathom.workloads._response_normalisation import ResponseNormalisation
from fathom.workloads.alexnet import AlexNet, AlexNetwork
from fathom.workloads.base import workload_class
from fathom.workloads.residual import Block, Residual
from fathom.workloads.vgg import VGG

NAMES = ("alexnet", "vgg", "residual")
SPATIAL = {"alexnet": "features.conv2", "vgg": "stages.stage2.conv1", "residual": "stages.stage2.block1.conv1"}


def configured(name: str, preset: str, **changes: Any) -> ImageClassifier:
    workload = workload_class(name).configured(preset, **changes)
    assert isinstance(workload, ImageClassifier)
    return workload


def on_meta(workload: ImageClassifier, items: int = 1) -> tuple[nn.Module, dict[str, Tensor]]:
    with torch.device("meta"):
        return workload.model(), {"image": torch.empty(items, 3, workload.side, workload.side, dtype=torch.uint8)}


@pytest.mark.parametrize(
    ("name", "changes", "parameters", "macs"),
    [
        ("alexnet", {}, 60_965_224, 724_406_816),
        ("vgg", {}, 143_667_240, 19_632_062_464),
        ("vgg", {"configuration": "D"}, 138_357_544, 15_470_264_320),
        ("vgg", {"configuration": "A"}, 132_863_336, 7_609_090_048),
        ("residual", {}, 21_797_672, 3_663_761_408),
    ],
)
def test_published_size_and_work(name: str, changes: dict[str, Any], parameters: int, macs: int) -> None:
    workload = configured(name, "paper", **changes)
    model, batch = on_meta(workload)
    assert sum(weight.numel() for weight in model.parameters()) == parameters
    with FlopCounterMode(display=False) as counter:
        logits = workload.forward(model, batch)
    assert logits.shape == (1, 1000)
    assert counter.get_total_flops() == 2 * macs
    logits.sum().backward()  # type: ignore[no-untyped-call]
    assert all(weight.grad is not None for weight in model.parameters())


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        (
            "alexnet",
            {
                "features.conv1": (96, 55, 55),
                "features.response1": (96, 55, 55),
                "features.conv2": (256, 27, 27),
                "features.response2": (256, 27, 27),
                "features.conv3": (384, 13, 13),
                "features.conv4": (384, 13, 13),
                "features.conv5": (256, 13, 13),
                "features.pool5": (256, 6, 6),
                "dense.full1": (4096,),
            },
        ),
        (
            "vgg",
            {
                "stages.stage1.conv2": (64, 224, 224),
                "stages.stage2": (128, 56, 56),
                "stages.stage3.conv4": (256, 56, 56),
                "stages.stage4.conv4": (512, 28, 28),
                "stages.stage5": (512, 7, 7),
                "dense.full2": (4096,),
            },
        ),
        (
            "residual",
            {
                "conv1": (64, 112, 112),
                "pool1": (64, 56, 56),
                "stages.stage1.block3": (64, 56, 56),
                "stages.stage2.block4": (128, 28, 28),
                "stages.stage3.block6": (256, 14, 14),
                "stages.stage4.block1.shortcut": (512, 7, 7),
                "stages.stage4.block3": (512, 7, 7),
            },
        ),
    ],
)
def test_published_shapes(name: str, shapes: dict[str, tuple[int, ...]]) -> None:
    workload = configured(name, "paper")
    model, batch = on_meta(workload, items=2)
    seen: dict[str, tuple[int, ...]] = {}
    for path in shapes:
        model.get_submodule(path).register_forward_hook(
            lambda _, __, output, path=path: seen.update({path: tuple(output.shape[1:])})
        )
    workload.forward(model, batch)
    assert seen == shapes


def slow_response(x: Tensor) -> Tensor:
    """Section 3.3 of the paper, one channel at a time."""
    channels = x.shape[1]
    rows = []
    for i in range(channels):
        window = x[:, max(0, i - 2) : min(channels - 1, i + 2) + 1]
        rows.append(x[:, i] / (2 + 1e-4 * window.square().sum(1)) ** 0.75)
    return torch.stack(rows, 1)


@pytest.mark.parametrize("channels", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_response_normalisation_is_the_papers(channels: int, memory_format: torch.memory_format) -> None:
    generator = torch.Generator().manual_seed(channels)
    x = 100 * torch.randn(2, channels, 4, 3, generator=generator)  # large, so that the sum weighs against k
    x = x.contiguous(memory_format=memory_format).requires_grad_()
    result = ResponseNormalisation()(x)
    expected = slow_response(x)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(result, F.local_response_norm(x, 5, alpha=5 * 1e-4, beta=0.75, k=2.0))
    direction = torch.randn(x.shape, generator=generator)
    (gradient,) = torch.autograd.grad(result, x, direction)
    (exact,) = torch.autograd.grad(expected, x, direction)
    torch.testing.assert_close(gradient, exact)
    assert result.is_contiguous(memory_format=memory_format)


def test_response_normalisation_is_wide_inside_when_its_input_is_narrow() -> None:
    narrow = (30 * torch.randn(2, 8, 3, 3, generator=torch.Generator().manual_seed(0))).bfloat16().requires_grad_()
    result = ResponseNormalisation()(narrow)
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, slow_response(narrow.float()).bfloat16())
    result.sum().backward()
    assert narrow.grad is not None
    assert narrow.grad.dtype == torch.bfloat16


def test_alexnet_starts_as_published() -> None:
    torch.manual_seed(0)
    network = AlexNet.configured("tiny", weight_deviation=0.01).model()
    assert isinstance(network, AlexNetwork)
    layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)}
    biases = {name: set(weight.tolist()) for name, weight in network.named_parameters() if name.endswith("bias")}
    ones = {"features.conv2", "features.conv4", "features.conv5", "dense.full1", "dense.full2"}
    assert biases == {f"{name}.bias": {1.0 if name in ones else 0.0} for name in layers}
    weights = torch.cat([layer.weight.flatten() for layer in layers.values()])
    assert weights.std().item() == pytest.approx(0.01, rel=0.01)
    assert network.get_parameter("features.conv2.weight").shape == (32, 6, 5, 5), (
        "each half of the second layer sees half of the first"
    )


def test_vgg_starts_as_glorot_proposed() -> None:
    torch.manual_seed(0)
    model = VGG.configured("tiny", weight_gain=1.0).model()
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            receptive = layer.weight[0, 0].numel()
            bound = math.sqrt(6 / (receptive * (layer.weight.shape[0] + layer.weight.shape[1])))
            assert 0.9 * bound < layer.weight.abs().max() <= bound
            assert layer.bias is not None
            assert not layer.bias.any()


def test_vgg_can_begin_without_guesses() -> None:
    torch.manual_seed(0)
    *others, last = VGG.configured("tiny", last_deviation=0.01).model().parameters()
    assert not last.any()
    assert float(others[-1].detach().std()) == pytest.approx(0.01, rel=0.05)
    assert float(others[-3].detach().std()) > 0.02, "the layer before it is Glorot's"


def test_residual_starts_as_he_proposed() -> None:
    torch.manual_seed(0)
    model = Residual.configured("tiny").model()
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            outputs = layer.weight.shape[0] * layer.weight[0, 0].numel()
            assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / outputs), rel=0.2)
            assert layer.bias is None
        elif isinstance(layer, nn.BatchNorm2d):
            assert (layer.weight == 1).all()
        elif isinstance(layer, nn.Linear):
            assert layer.weight.std().item() == pytest.approx(0.01, rel=0.1)
            assert not layer.bias.any()


def test_residual_begins_with_a_guess() -> None:
    """A guess among ten classes costs log 10; logits that are large from the start would cost more."""
    torch.manual_seed(0)
    workload = configured("residual", "tiny")
    assert workload.loss(workload.model(), workload.example()).item() == pytest.approx(math.log(10), abs=0.1)


def test_residual_block_adds_its_shortcut_before_the_last_relu() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 6, 6)
    same, halved = Block(4, 4, 1).eval(), Block(4, 8, 2).eval()
    for block in (same, halved):
        nn.init.zeros_(block.norm2.weight)
        nn.init.constant_(block.norm2.bias, 0.25)
    assert torch.equal(same(x), F.relu(x + 0.25))
    assert halved.shortcut is not None
    assert torch.equal(halved(x), F.relu(halved.shortcut(x) + 0.25))
    assert halved(x).shape == (2, 8, 3, 3)


@pytest.mark.parametrize("channels_last", [True, False])
def test_bytes_are_normalised_into_the_wanted_memory_format(channels_last: bool) -> None:
    image = torch.zeros(2, 3, 2, 2, dtype=torch.uint8)
    image[1] = 255
    image[1, 1, 0, 1] = 51
    wanted = torch.channels_last if channels_last else torch.contiguous_format
    for given in (torch.channels_last, torch.contiguous_format):
        normal = Normalise(channels_last)(image.contiguous(memory_format=given))
        assert normal.dtype == torch.float32
        assert normal.is_contiguous(memory_format=wanted)
        assert normal[0, :, 0, 0].tolist() == pytest.approx([-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225])
        assert normal[1, :, 1, 1].tolist() == pytest.approx([0.515 / 0.229, 0.544 / 0.224, 0.594 / 0.225])
        assert normal[1, 1, 0, 1].item() == pytest.approx((0.2 - 0.456) / 0.224)


@pytest.mark.parametrize("channels_last", [True, False])
def test_normalising_is_one_multiplication_and_addition_for_every_byte(channels_last: bool) -> None:
    """Bit for bit what a single mixed-type addcmul into a buffer gives, which exporters cannot convert."""
    image = torch.arange(256, dtype=torch.uint8).expand(2, 3, 256).reshape(2, 3, 16, 16)
    normalise = Normalise(channels_last)
    expected = torch.empty(image.shape)
    torch.addcmul(normalise.offset, image, normalise.scale, out=expected)
    for given in (torch.channels_last, torch.contiguous_format):
        assert torch.equal(normalise(image.contiguous(memory_format=given)), expected)


@pytest.mark.parametrize("name", NAMES)
def test_the_networks_export_without_writing_into_a_given_tensor(name: str) -> None:
    workload = configured(name, "tiny")
    torch.manual_seed(0)
    model, image = workload.model().eval(), workload.example()["image"]
    exported = torch.export.export(model, (image,))
    targets = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert not [target for target in targets if target.endswith(".out")], "converters know no out= variants"
    (addcmul,) = (node for node in exported.graph.nodes if str(node.target).startswith("aten.addcmul"))
    assert {node.meta["val"].dtype for node in addcmul.args} == {torch.float32}, "nor products of bytes and floats"
    torch.testing.assert_close(exported.module()(image), model(image))


@pytest.mark.parametrize("name", NAMES)
def test_memory_format_changes_the_layout_and_not_the_answer(name: str) -> None:
    answers = []
    for channels_last in (True, False):
        workload = configured(name, "tiny", channels_last=channels_last)
        torch.manual_seed(1)
        model = workload.model().eval()
        weight = model.get_submodule(SPATIAL[name]).weight
        assert isinstance(weight, Tensor)
        assert weight.is_contiguous(memory_format=torch.channels_last) is channels_last
        answers.append(workload.forward(model, workload.example()))
    torch.testing.assert_close(answers[0], answers[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_keeps_the_loss_in_full_precision(name: str) -> None:
    workload = configured(name, "tiny")
    torch.manual_seed(0)
    model, batch = workload.model().eval(), workload.example()
    exact = workload.loss(model, batch)
    with torch.autocast("cpu", torch.bfloat16):
        loss = workload.loss(model, batch)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=0.1)


@pytest.mark.parametrize("name", NAMES)
def test_smallest_side_is_the_smallest(name: str) -> None:
    least = workload_class(name).smallest_side  # type: ignore[attr-defined]
    workload = configured(name, "small", side=least)
    model, batch = on_meta(workload)
    assert workload.forward(model, batch).shape == (1, 1000)
    with pytest.raises(BadOption, match=rf"side of {name} must be at least {least}, not {least - 1}"):
        configured(name, "small", side=least - 1)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"shrink": 3}, "shrink must be one of 1, 2, 4, 8, 16, not 3"),
        ({"classes": 1}, "classes must be at least 2, not 1"),
        ({"configuration": "C"}, "no configuration of vgg 'C'; there are: A, B, D, E"),
    ],
)
def test_impossible_options_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(FathomError, match=problem):
        configured("vgg", "tiny", **changes)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shrink", [1, 2, 4, 8, 16])
def test_every_shrink_divides_every_width(name: str, shrink: int) -> None:
    full, shrunk = (on_meta(configured(name, "small", shrink=by))[0] for by in (1, shrink))
    for large, small in zip(full.modules(), shrunk.modules(), strict=True):
        if isinstance(large, nn.Conv2d):
            assert isinstance(small, nn.Conv2d)
            assert small.out_channels * shrink == large.out_channels


def test_inference_gives_the_five_likeliest_classes_best_first() -> None:
    workload = configured("vgg", "tiny")
    torch.manual_seed(0)
    model, batch = workload.model().eval(), workload.example()
    output = workload.infer(model, batch)
    expected = workload.forward(model, batch).softmax(-1)
    ranking = expected.argsort(-1, descending=True)[:, :5]
    assert torch.equal(output["classes"], ranking)
    torch.testing.assert_close(output["probabilities"], expected.gather(1, ranking))
    few = configured("vgg", "tiny", classes=3)
    assert few.infer(few.model().eval(), batch)["classes"].shape == (16, 3)


def test_answers_name_the_classes_that_have_names() -> None:
    source = imagenet.synthetic(0, 32, 1000, items=1)
    output = {"classes": torch.tensor([[7, 700]]), "probabilities": torch.tensor([[0.75, 0.125]])}
    assert configured("alexnet", "tiny").answers(output, source) == ["pattern 7 75.0%, class 700 12.5%"]


@pytest.mark.parametrize("name", NAMES)
def test_synthetic_set_stays_small(name: str) -> None:
    source = configured(name, "small").synthetic(0)
    assert isinstance(source, InMemory)
    assert source.nbytes < 100e6
