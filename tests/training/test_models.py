"""The networks of the course: their sizes, that they are cut where they should be, and that they learn."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from model_shapes import gpt_parameters, resnet50_parameters
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close

from utils.training.models import (
    GPT,
    GPT2_SMALL,
    GPT_1B,
    GPT_7B,
    AlexNet,
    GPTConfig,
    ResNet50,
    TwoColumnAlexNet,
    gpt_parameter_count,
)

pytestmark = pytest.mark.numeric

TINY = GPTConfig(layers=2, heads=2, width=16, vocabulary=11, context=8)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _shapes(module: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(parameter.shape)) for name, parameter in module.named_parameters()]


def _tokens(config: GPTConfig, batch: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(config.vocabulary, (batch, config.context), generator=generator)


# --- The package --------------------------------------------------------------------------------------------


def test_sizes_need_no_torch():
    code = (
        "import sys, utils.training.models;"
        "from utils.training.models import GPT2_SMALL, RESNET50_GRADIENT_BYTES, gpt_parameter_count;"
        "gpt_parameter_count(GPT2_SMALL), dir(utils.training.models);"
        "assert 'torch' not in sys.modules;"
        "from utils.training.models import ResNet50;"
        "assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240, cwd=Path(__file__).parents[2])


# --- AlexNet ------------------------------------------------------------------------------------------------


def test_alexnet_has_the_documented_number_of_parameters():
    with torch.device("meta"):
        assert _count(AlexNet()) == 61_100_840  # torchvision, AlexNet_Weights.IMAGENET1K_V1, num_params
        assert AlexNet(classes=7)(torch.empty(2, 3, 224, 224)).shape == (2, 7)


def test_two_columns_have_the_numbers_of_parameters_of_the_paper():
    net = TwoColumnAlexNet(devices=("meta", "meta"))
    layers = ["conv1", "conv2", "conv3", "conv4", "conv5", "fc6", "fc7", "fc8"]
    counts = {name: sum(_count(getattr(column, name)) for column in net.children()) for name in layers}
    assert counts == {
        **{"conv1": 34_944, "conv2": 307_456, "conv3": 885_120, "conv4": 663_936, "conv5": 442_624},
        **{"fc6": 37_752_832, "fc7": 16_781_312, "fc8": 4_097_000},
    }
    assert _count(net) == 60_965_224
    assert _count(net.column0) == _count(net.column1)


def _grouped(net: TwoColumnAlexNet) -> nn.Sequential:
    """The same net on one device: what sees its own column only is a convolution with two groups."""
    grouped = nn.Sequential(
        *(nn.Conv2d(3, 96, 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(96, 256, 5, padding=2, groups=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(256, 384, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(384, 384, 3, padding=1, groups=2), nn.ReLU()),
        *(nn.Conv2d(384, 256, 3, padding=1, groups=2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Flatten()),
        *(nn.Linear(9216, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()),
        nn.Linear(4096, net.column0.fc8.out_features + net.column1.fc8.out_features),
    )
    layers = [layer for layer in grouped if isinstance(layer, nn.Conv2d | nn.Linear)]
    halves = zip(net.column0.children(), net.column1.children(), strict=True)
    with torch.no_grad():
        for layer, (half0, half1) in zip(layers, halves, strict=False):  # dropout has no weights
            layer.weight.copy_(torch.cat([half0.weight, half1.weight]))
            layer.bias.copy_(torch.cat([half0.bias, half1.bias]))
    return grouped


@pytest.mark.parametrize("classes", [10, 5])
def test_two_columns_compute_what_grouped_convolutions_compute(classes):
    torch.manual_seed(0)
    net = TwoColumnAlexNet(classes=classes).eval()
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        expected = _grouped(net)(images)
        logits = net(images)
    assert logits.shape == (2, classes)
    assert expected.std() > 1e-3  # or else equality would say little
    assert_close(logits, expected, rtol=1e-4, atol=1e-6)


class _Sent(TorchFunctionMode):
    """Writes down the shape of each tensor that is moved with ``.to``."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.to:
            self.shapes.append(tuple(args[0].shape))
        return function(*args, **(kwargs or {}))


def test_columns_cross_only_where_the_paper_lets_them():
    net = TwoColumnAlexNet(devices=("meta", "meta"))
    images = torch.empty(2, 3, 224, 224, device="meta")
    with _Sent() as sent:
        net(images)
    both_ways = [(2, 128, 13, 13), (2, 128 * 6 * 6), (2, 2048), (2, 2048)]  # before conv3, fc6, fc7, fc8
    assert sent.shapes == [(2, 3, 224, 224)] * 2 + [shape for shape in both_ways for _ in range(2)] + [(2, 500)]


# --- ResNet-50 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [1000, 10])
def test_resnet50_has_the_names_and_shapes_of_its_table(classes):
    with torch.device("meta"):
        net = ResNet50(classes)
    assert _shapes(net) == list(resnet50_parameters(classes))
    if classes == 1000:
        assert _count(net) == 25_557_032
        assert len(net.state_dict()) == 320  # torchvision's: 161 parameters, and 3 buffers for each of 53 BatchNorms


@pytest.mark.parametrize("training", [True, False])
def test_pieces_of_resnet50_in_order_are_its_forward(training):
    torch.manual_seed(0)
    net = ResNet50(classes=10).train(training)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = net(images)
        values = images
        for piece in net.pieces():
            values = piece(values)
    assert len(net.pieces()) == 18
    assert torch.equal(values, expected)
    assert expected.shape == (2, 10)


# --- GPT ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [TINY, GPT2_SMALL, GPT_1B, GPT_7B])
@pytest.mark.parametrize("tied", [True, False])
def test_gpt_has_the_names_and_shapes_of_its_formula(config, tied):
    config = replace(config, tied=tied)
    with torch.device("meta"):
        net = GPT(config)
    assert _shapes(net) == list(gpt_parameters(config))
    assert _count(net) == gpt_parameter_count(config)


def test_gpt_never_looks_ahead():
    torch.manual_seed(0)
    net = GPT(TINY).eval()
    tokens = _tokens(TINY)
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % TINY.vocabulary
    with torch.no_grad():
        before, after = net(tokens), net(changed)
    assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_pieces_of_gpt_in_order_are_its_forward():
    torch.manual_seed(0)
    config = replace(TINY, tied=False)
    net = GPT(config)
    tokens = _tokens(config)
    values = tokens
    for piece in net.pieces():
        values = piece(values)
    assert len(net.pieces()) == config.layers + 2
    assert torch.equal(values, net(tokens))
    assert values.shape == (3, config.context, config.vocabulary)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_checkpointing_changes_neither_loss_nor_gradients(dropout):
    config = replace(TINY, dropout=dropout)
    tokens, results, kept = _tokens(config), [], []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        net = GPT(replace(config, checkpointing=checkpointing))
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, saved=saved: saved.append(t.numel()) or t, lambda t: t):
            loss = net(tokens, tokens.roll(-1, 1))
        loss.backward()
        results.append([loss.detach(), *(parameter.grad for parameter in net.parameters())])
        kept.append(sum(saved))
    assert_close(results[1], results[0])
    assert kept[1] < kept[0] / 2  # and it does keep less


def test_a_gpt_made_on_meta_becomes_real():
    with torch.device("meta"):
        net = GPT(TINY)
        assert net(torch.zeros(2, 5, dtype=torch.long)).shape == (2, 5, TINY.vocabulary)
    net.to_empty(device="cpu")
    torch.manual_seed(0)
    net.reset_parameters()
    assert _count(net) == gpt_parameter_count(TINY)  # the tables are one again
    assert net(_tokens(TINY), _tokens(TINY)).item() == pytest.approx(math.log(TINY.vocabulary), rel=0.1)


def test_impossible_shapes_are_refused():
    with pytest.raises(ValueError, match="3 heads cannot share a width of 16"):
        replace(TINY, heads=3)
    with pytest.raises(ValueError, match="at least 1"):
        replace(TINY, layers=0)
