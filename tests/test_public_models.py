"""Parameters and multiply-accumulates of five public models, counted from profiles: equal to their known figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from public_models import GCN, GPT2, Bert, ResNet50, ViTB16
from torch import nn

import fathom
from fathom.core.record import Record

PRODUCTS = ("linear", "addmm", "mm", "conv", "dot_product")  # in the names of ops

pytestmark = pytest.mark.usefixtures("few_steps")


def macs(record: Record) -> int:
    """Of the products of a forward pass, which is what the papers count: 1 MAC is 2 FLOP."""
    assert record.profile is not None
    return round(sum(row.flop or 0 for row in record.profile.rows if any(name in row.op for name in PRODUCTS)) / 2)


def transformer_macs(length: int, *, blocks: int = 12, width: int = 768) -> int:
    """Query, key, value, output and the two layers of the MLP for each token; attention for each pair of tokens."""
    return blocks * (length * 12 * width**2 + 2 * length**2 * width)


def inference(model: nn.Module, batch: Any) -> Record:
    return fathom.profile(model, batch, phase="infer", device="cpu")


def tokens(vocabulary: int, length: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (1, length), generator=torch.Generator().manual_seed(1))


def test_resnet_50() -> None:
    record = inference(ResNet50(), torch.randn(1, 3, 224, 224))
    assert (record.parameters, record.items_per_step) == (25_557_032, 1)
    assert macs(record) == 4_089_184_256, "4.09 GMAC"


def test_vit_b_16() -> None:
    record = inference(ViTB16(), torch.randn(1, 3, 224, 224))
    assert record.parameters == 86_567_656
    assert macs(record) == 196 * 768 * 768 + transformer_macs(197) + 768 * 1000 == 17_563_828_224, "17.56 GMAC"


def test_gpt_2_by_its_length() -> None:
    record = inference(GPT2(), {"input_ids": tokens(50257, 16)})
    assert record.parameters == 124_439_808
    assert macs(record) == transformer_macs(16) + 16 * 768 * 50257, "causal attention is counted as the whole square"


def test_bert_base_takes_a_batch_by_name() -> None:
    batch: Mapping[str, torch.Tensor] = {"input_ids": tokens(30522, 24), "token_type_ids": tokens(2, 24)}
    record = inference(Bert(), batch)
    assert record.parameters == 109_482_240
    assert macs(record) == transformer_macs(24) + 768 * 768


def test_a_graph_network_takes_nodes_and_edges() -> None:
    nodes, edges = 270, torch.randint(0, 270, (2, 1055), generator=torch.Generator().manual_seed(1))
    loops = torch.arange(nodes).expand(2, -1)
    record = inference(GCN(), (torch.rand(nodes, 1433), torch.cat([edges, loops], 1)))
    assert (record.parameters, record.items_per_step) == (1433 * 16 + 16 + 16 * 7 + 7, nodes)
    assert macs(record) == nodes * (1433 * 16 + 16 * 7)


def test_training_does_three_times_the_work_less_the_gradient_of_the_input() -> None:
    model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 16))
    record = fathom.profile(model, torch.randn(8, 64), device="cpu")
    assert macs(record) == 8 * (2 * 64 * 32 + 3 * 32 * 16)
