"""Training on simulated GPUs gives the CPU's numbers, bit for bit."""

import copy

import pytest
import torch
from simgpu_support import MODELS, OPTIMIZERS, allocated, assert_same_bits, built, on_gpu, same_bits, train
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import simgpu
from utils.training.models import ResNet50, TwoColumnAlexNet

pytestmark = pytest.mark.numeric

GPU = "simgpu:1"


@pytest.fixture(autouse=True)
def _cluster():
    simgpu.cluster(gpus_per_node=4)
    torch.manual_seed(0)


@pytest.mark.parametrize("name", MODELS)
def test_steps_of_training_equal_the_cpus_bit_for_bit(name):
    batch = MODELS[name][1]
    expected = train(built(name), batch, steps=5)
    assert expected["losses"][-1] < expected["losses"][0], "nothing was learnt, so nothing is compared"
    assert_same_bits(expected, train(built(name), batch, steps=5, home=GPU))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_takes_the_cpus_steps(optimizer):
    batch = MODELS["mlp"][1]
    assert_same_bits(train(built("mlp"), batch, optimizer), train(built("mlp"), batch, optimizer, home=GPU))


@pytest.mark.nightly
def test_resnet50_gives_the_cpus_numbers():
    torch.manual_seed(1)
    model, images = ResNet50(classes=5), torch.randn(4, 3, 32, 32)
    copied = copy.deepcopy(model)
    expected = train(model, images, "SGD", steps=2)
    assert_same_bits(expected, train(copied, images, "SGD", steps=2, home="simgpu:1"))


@pytest.mark.nightly
def test_two_columns_on_two_gpus_give_the_numbers_of_two_columns_on_the_cpu():
    torch.manual_seed(1)
    model, images = TwoColumnAlexNet(classes=4, dropout=0.0), torch.randn(2, 3, 224, 224)
    copied = copy.deepcopy(model)
    copied.devices = ("simgpu:2", "simgpu:1")
    copied.column0.to("simgpu:2")
    copied.column1.to("simgpu:1")
    outputs = [model(images), copied(images)]
    assert outputs[1].device == simgpu.device(2)
    assert same_bits(*outputs)
    for out in outputs:
        out.square().sum().backward()
    for (name, mine), theirs in zip(model.named_parameters(), copied.named_parameters(), strict=True):
        assert theirs[1].grad.device == simgpu.device(2 if name.startswith("column0") else 1)
        assert same_bits(mine.grad, theirs[1].grad), name


@pytest.mark.parametrize("gpu", [0, 1])
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing_repeats_dropout_and_changes_no_number(use_reentrant, gpu):
    layers = nn.Sequential(nn.Linear(6, 32), nn.Dropout(0.5), nn.Linear(32, 6), nn.Dropout(0.5)).to(f"simgpu:{gpu}")
    inputs = torch.randn(8, 6, device=f"simgpu:{gpu}", requires_grad=True)
    found = []
    for kept in (True, False):
        torch.manual_seed(2)
        out = layers(inputs) if kept else checkpoint(layers, inputs, use_reentrant=use_reentrant)
        out.sum().backward()
        found.append([out.detach(), inputs.grad, *(p.grad for p in layers.parameters())])
        inputs.grad = None
        layers.zero_grad()
    assert (found[0][0] == 0).any(), "there was no dropout"
    assert all(same_bits(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_models_of_other_types_give_the_cpus_numbers(dtype):
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5)).to(dtype)
    copied, inputs = on_gpu(model, 1), torch.randn(7, 6, dtype=dtype)
    outputs = model(inputs), copied(inputs.to("simgpu:1"))
    for out in outputs:
        out.sum().backward()
    assert same_bits(*outputs)
    assert same_bits(model[0].weight.grad, copied[0].weight.grad)
    assert copied[0].weight.grad.dtype is dtype


def test_gradients_of_a_model_over_two_gpus_are_clipped_together_and_one_optimizer_steps_over_both():
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 5))
    copied = copy.deepcopy(model)
    copied[0].to("simgpu:0")
    copied[1].to("simgpu:1")
    inputs = torch.randn(7, 6)
    model(inputs).square().sum().backward()
    copied[1](copied[0](inputs.to("simgpu:0")).to("simgpu:1")).square().sum().backward()
    norms = [nn.utils.clip_grad_norm_(net.parameters(), 0.5) for net in (model, copied)]
    assert norms[1].device == simgpu.device(0)
    assert same_bits(*norms)
    assert_same_bits(*({n: p.grad for n, p in net.named_parameters()} for net in (model, copied)))
    for net in (model, copied):
        torch.optim.Adam(net.parameters(), lr=0.1).step()
    assert_same_bits(model.state_dict(), copied.state_dict())
    assert [p.device.index for p in copied.parameters()] == [0, 0, 1, 1]


def test_moving_a_model_keeps_its_parameters_so_an_optimizer_made_before_works():
    model = nn.Linear(3, 4)
    optimizer, weight = torch.optim.SGD(model.parameters(), lr=1.0), model.weight
    before = weight.detach().clone()
    model.to("simgpu:1")
    assert model.weight is weight
    assert weight.device == simgpu.device(1)
    model(torch.ones(1, 3, device="simgpu:1")).sum().backward()
    optimizer.step()
    assert_close(model.weight.cpu(), before - 1)


def test_a_model_comes_back_to_the_cpu_and_leaves_nothing():
    model = built("cnn")
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    model.to("simgpu:1")
    optimizer = torch.optim.Adam(model.parameters())
    model.cpu()
    assert all(type(p) is nn.Parameter and p.device.type == "cpu" for p in model.parameters())
    assert_same_bits(expected, model.state_dict())
    del optimizer
    assert allocated() == [0] * 4


def test_a_deep_copy_is_a_model_of_its_own_on_the_same_gpu():
    model = built("gpt tied").to("simgpu:1")
    copied = copy.deepcopy(model)
    assert_same_bits(model.state_dict(), copied.state_dict())
    assert all(isinstance(p, nn.Parameter) and p.device == simgpu.device(1) for p in copied.parameters())
    assert copied.gpt.head.output.weight is copied.gpt.embed.tokens.weight, "what was shared is shared again"
    with torch.no_grad():
        copied.gpt.embed.tokens.weight.zero_()
    assert model.gpt.embed.tokens.weight.abs().sum() > 0


def test_a_model_is_made_on_the_gpu_that_a_context_names():
    with torch.device("simgpu:1"):
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Embedding(3, 2))
        others = [torch.randn(3), torch.tensor([1.0]), torch.arange(3), torch.zeros(2)]
    assert {t.device.index for t in (*model.parameters(), *model.buffers(), *others)} == {1}
    assert all(isinstance(p, nn.Parameter) for p in model.parameters())


def test_a_model_without_memory_becomes_real_on_a_gpu():
    with torch.device("meta"):
        model = nn.Linear(3, 3)
    model.to_empty(device="simgpu:1")
    model.reset_parameters()
    assert model.weight.device == simgpu.device(1)
    assert isinstance(model.weight, nn.Parameter)
    assert model.weight.abs().sum() > 0


def test_a_module_of_the_host_moves_when_its_data_is_replaced():
    """As on a GPU: each parameter stays the same object, so an optimizer that has it already trains it."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    net[0].bias.requires_grad_(False)
    parameters, optimizer = list(net.parameters()), torch.optim.SGD(net.parameters(), lr=0.1)
    before = net[0].weight.detach().clone()
    for one in [*net.parameters(), *net.buffers()]:
        one.data = one.data.to("simgpu:1")
    assert all(one.device == simgpu.device(1) for one in [*net.parameters(), *net.buffers()])
    assert all(one is other for one, other in zip(net.parameters(), parameters, strict=True))
    assert [one.requires_grad for one in parameters] == [True, False, True, True]
    net(torch.randn(5, 3, device="simgpu:1")).square().sum().backward()
    optimizer.step()
    assert not torch.equal(net[0].weight.cpu(), before) and isinstance(net[0].weight, nn.Parameter)
    host = torch.ones(2)
    host.data = torch.zeros(2)  # all else as ever
    assert host.tolist() == [0.0, 0.0]
