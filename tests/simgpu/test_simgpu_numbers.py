"""Numbers on simulated GPUs: equal to the CPU's, bit for bit, in whatever way they are asked for."""

import copy
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from simgpu_support import MODELS, OPTIMIZERS, allocated, assert_same_bits, built, on_gpu, same_bits, train
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import simgpu
from simgpu.tensors import autocast
from utils.training.models import AlexNet, ResNet50, TwoColumnAlexNet

pytestmark = pytest.mark.numeric

GPUS = ["simgpu:0", "simgpu:1"]


@pytest.fixture(autouse=True)
def _cluster():
    simgpu.cluster(gpus_per_node=4)
    torch.manual_seed(0)


# --- Training -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("home", GPUS)
@pytest.mark.parametrize("name", MODELS)
def test_ten_steps_of_training_equal_the_cpus_bit_for_bit(name, home):
    batch = MODELS[name][1]
    expected = train(built(name), batch)
    assert expected["losses"][-1] < expected["losses"][0], "nothing was learnt, so nothing is compared"
    assert_same_bits(expected, train(built(name), batch, home=home))


@pytest.mark.parametrize("home", GPUS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_takes_the_cpus_steps(optimizer, home):
    batch = MODELS["mlp"][1]
    assert_same_bits(train(built("mlp"), batch, optimizer), train(built("mlp"), batch, optimizer, home=home))


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"amsgrad": True}, {"maximize": True}])
def test_options_of_adam_give_the_cpus_numbers(options):
    model, batch = built("mlp").eval(), MODELS["mlp"][1]
    copied = on_gpu(model, 1)
    for net, inputs in ((model, batch), (copied, batch.to("simgpu:1"))):
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01, **options)
        for _ in range(3):
            optimizer.zero_grad()
            net(inputs).square().mean().backward()
            optimizer.step()
    assert_same_bits(model.state_dict(), copied.state_dict())


def test_resnet50_gives_the_cpus_numbers():
    torch.manual_seed(1)
    model, images = ResNet50(classes=5), torch.randn(4, 3, 32, 32)
    copied = copy.deepcopy(model)
    expected = train(model, images, "SGD", steps=2)
    assert_same_bits(expected, train(copied, images, "SGD", steps=2, home="simgpu:1"))


def test_alexnet_gives_the_cpus_numbers():
    model, images = AlexNet(classes=5), torch.randn(2, 3, 224, 224)
    copied = on_gpu(model, 1)
    outputs = []
    for net, inputs in ((model, images), (copied, images.to("simgpu:1"))):
        torch.manual_seed(5)
        outputs.append(net(inputs))
        outputs[-1].sum().backward()
    assert same_bits(*outputs)
    for (name, mine), theirs in zip(model.named_parameters(), copied.parameters(), strict=True):
        assert same_bits(mine.grad, theirs.grad), name


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


def test_accumulated_gradients_equal_the_cpus():
    model, batch = built("mlp").eval(), MODELS["mlp"][1]
    copied = on_gpu(model, 1)
    for part in batch.split(2):
        model(part).sum().backward()
        copied(part.to("simgpu:1")).sum().backward()
    assert_same_bits(*({n: p.grad for n, p in net.named_parameters()} for net in (model, copied)))


# --- Ways of training ---------------------------------------------------------------------------------------


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


def test_autocast_computes_what_the_cpus_autocast_computes_where_their_lists_agree():
    model, inputs = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5)), torch.randn(7, 6)
    copied = on_gpu(model, 1)
    results = []
    for net, x, kind in ((model, inputs, "cpu"), (copied, inputs.to("simgpu:1"), "simgpu")):
        with torch.autocast(kind, dtype=torch.bfloat16):
            out = net(x)
        assert out.dtype is torch.bfloat16
        out.float().square().mean().backward()
        results.append({"out": out} | {name: p.grad for name, p in net.named_parameters()})
    assert_same_bits(*results)
    assert results[1]["0.weight"].dtype is torch.float32, "gradients have their parameter's type"


def test_autocast_chooses_the_types_that_cuda_chooses():
    x, w = torch.randn(4, 4, device="simgpu:1"), torch.randn(4, 4, device="simgpu:1")
    half, labels = x.bfloat16(), torch.zeros(4, dtype=torch.long, device="simgpu:1")
    low, full = torch.bfloat16, torch.float32
    with torch.autocast("simgpu", dtype=low):
        types = {
            "mm": ((x @ w).dtype, low),
            "linear": (F.linear(x, w).dtype, low),
            "einsum": (torch.einsum("ij,jk->ik", x, w).dtype, low),
            "conv": (F.conv1d(x[None], w[..., None]).dtype, low),
            "attention": (F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]).dtype, low),
            "layer_norm": (F.layer_norm(half, (4,)).dtype, full),
            "softmax": (half.softmax(1).dtype, full),
            "log_softmax": (half.log_softmax(1).dtype, full),
            "cross_entropy": (F.cross_entropy(half, labels).dtype, full),
            "mse": (F.mse_loss(half, half).dtype, full),
            "exp": (half.exp().dtype, full),
            "sum": (half.sum().dtype, full),
            "relu keeps": (half.relu().dtype, low),
            "add promotes": ((half + x).dtype, full),
            "gelu keeps": (F.gelu(half).dtype, low),
            "widest": (torch.addcmul(half, x, x).dtype, full),
            "float64 stays": ((x.double() @ w.double()).dtype, torch.float64),
            "whole numbers stay": (labels.sum().dtype, torch.long),
        }
        with torch.autocast("simgpu", enabled=False):
            assert (x @ w).dtype is full
    assert (x @ w).dtype is full, "outside nothing changes"
    assert {name: found for name, (found, _) in types.items()} == {name: want for name, (_, want) in types.items()}


def test_the_lists_of_autocast_are_those_of_torchs_header():
    header = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text()
    parts = re.split(r"#define AT_FORALL_(\w+)\(_\)", header)
    lists = {name: set(re.findall(r"_\((\w+)", body.split("\n\n")[0])) for name, body in zip(parts[1::2], parts[2::2])}  # noqa: B905
    fp32 = lists["FP32"] | {"norm"} if "norm" in lists["FP32"] else lists["FP32"]
    assert set(autocast.LOWER_PRECISION) == lists["LOWER_PRECISION_FP"]
    assert set(autocast.WIDEST) == lists["PROMOTE"]
    assert set(autocast.FP32) == fp32
    assert set(autocast.FP32_RESULT) - {"norm"} == lists["FP32_SET_OPT_DTYPE"] - {"norm"}


def test_a_gradient_scaler_works_as_on_cuda():
    model = nn.Linear(4, 4).to("simgpu:1")
    scaler, optimizer = torch.amp.GradScaler("simgpu", init_scale=8.0), torch.optim.SGD(model.parameters(), lr=0.5)
    before = model.weight.detach().clone()
    scaler.scale(model(torch.ones(2, 4, device="simgpu:1")).sum()).backward()
    assert model.weight.grad.tolist() == [[16.0] * 4] * 4, "two rows of ones, times the scale"
    scaler.step(optimizer)
    assert_close(before - model.weight, torch.ones(4, 4, device="simgpu:1")), "0.5 · 2: the scale is taken out"
    scaler.update()
    assert scaler.get_scale() == 8.0


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


def test_recurrent_networks_give_the_cpus_numbers():
    inputs = torch.randn(2, 5, 3)
    for kind in (nn.RNN, nn.GRU, nn.LSTM):
        model = kind(3, 4, num_layers=2, batch_first=True)
        copied = on_gpu(model, 1)
        outputs = model(inputs)[0], copied(inputs.to("simgpu:1"))[0]
        for out in outputs:
            out.square().sum().backward()
        # Up to rounding. For a CPU tensor torch multiplies the inputs of all steps of time by the weights at once; for
        # any other device, CUDA too, step by step: another shape, for which a matrix library may add in another order.
        # And like CUDA a simulated GPU has fused cells for GRU and LSTM, which add the biases later than the CPU does.
        assert_close(outputs[1].cpu(), outputs[0])
        for mine, theirs in zip(model.parameters(), copied.parameters(), strict=True):
            assert_close(theirs.grad.cpu(), mine.grad)


# --- Autograd -----------------------------------------------------------------------------------------------


def test_no_grad_and_evaluation_leave_no_graph():
    model = on_gpu(built("cnn"), 1).eval()
    with torch.no_grad():
        out = model(MODELS["cnn"][1].to("simgpu:1"))
    assert out.grad_fn is None
    assert not out.requires_grad
    assert same_bits(out, built("cnn").eval()(MODELS["cnn"][1]))


def test_gradients_can_be_asked_for_without_being_kept():
    x = torch.randn(5, device="simgpu:1", requires_grad=True)
    (gradient,) = torch.autograd.grad(x.square().sum(), x)
    assert torch.equal(gradient, 2 * x)
    assert gradient.device == x.device
    assert x.grad is None


def test_the_gradient_of_a_gradient_is_right():
    x = torch.tensor([1.0, 2.0, 3.0], device="simgpu:1", requires_grad=True)
    (slope,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    slope.sum().backward()
    assert x.grad.tolist() == [6.0, 12.0, 18.0]


def test_the_gradient_of_a_gradient_crosses_gpus():
    x = torch.tensor([1.0, 2.0], device="simgpu:1", requires_grad=True)
    (slope,) = torch.autograd.grad((x.to("simgpu:2") ** 3).sum(), x, create_graph=True)
    assert slope.device == x.device
    slope.to("simgpu:3").sum().backward()
    assert x.grad.tolist() == [6.0, 12.0]


def test_functional_transforms_work():
    x = torch.randn(4, 3, device="simgpu:1")
    assert torch.equal(torch.func.vmap(lambda row: row.sum())(x), torch.stack([row.sum() for row in x]))
    assert torch.equal(torch.func.grad(lambda t: t.square().sum())(x), 2 * x)


def test_gradients_reach_every_gpu_that_took_part():
    x = torch.ones(3, device="simgpu:0", requires_grad=True)
    factor = torch.full((3,), 2.0, device="simgpu:1", requires_grad=True)
    host = torch.full((3,), 5.0, requires_grad=True)
    ((x.to("simgpu:1") * factor).to("simgpu:2").cpu() * host).sum().backward()
    assert (x.grad.device, x.grad.tolist()) == (simgpu.device(0), [10.0] * 3)
    assert (factor.grad.device, factor.grad.tolist()) == (simgpu.device(1), [5.0] * 3)
    assert (host.grad.device.type, host.grad.tolist()) == ("cpu", [2.0] * 3)


def test_gradients_that_are_zero_are_on_their_tensors_gpu_too():
    for function in (lambda x: torch.copysign(torch.ones_like(x), x), lambda x: x.repeat(0), lambda x: x.sgn()):
        x = torch.randn(3, device="simgpu:1", requires_grad=True)
        function(x).sum().backward()
        assert x.grad.device == x.device
        assert x.grad.tolist() == [0.0] * 3


def test_hooks_see_tensors_of_the_right_gpu():
    model, seen = nn.Linear(3, 4).to("simgpu:1"), []
    model.register_forward_hook(lambda _module, _inputs, out: seen.append(("forward", out.device.index)))
    model.register_full_backward_hook(lambda _module, _into, out: seen.append(("backward", out[0].device.index)))
    model.weight.register_hook(lambda grad: seen.append(("gradient", grad.device.index)) or 3 * grad)
    model.weight.register_post_accumulate_grad_hook(lambda p: seen.append(("kept", p.grad.device.index)))
    model(torch.ones(2, 3, device="simgpu:1", requires_grad=True)).sum().backward()
    assert seen == [("forward", 1), ("gradient", 1), ("kept", 1), ("backward", 1)]
    assert model.weight.grad.tolist() == [[6.0] * 3] * 4, "2 rows of ones, times 3 by the hook"


def test_an_optimizer_can_step_inside_of_backward():
    model = nn.Linear(3, 4).to("simgpu:1")
    optimizers = {p: torch.optim.SGD([p], lr=1.0) for p in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    before = model.weight.detach().clone()
    model(torch.ones(2, 3, device="simgpu:1")).sum().backward()
    assert_close(before - model.weight, torch.full((4, 3), 2.0, device="simgpu:1"))
    assert model.weight.grad is None


def test_gradients_of_a_model_over_two_gpus_are_clipped_together():
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


def test_the_step_of_an_optimizer_covers_parameters_on_several_gpus():
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 5))
    copied = copy.deepcopy(model)
    copied[0].to("simgpu:0")
    copied[1].to("simgpu:1")
    optimizers = [torch.optim.Adam(net.parameters(), lr=0.1) for net in (model, copied)]
    inputs = torch.randn(7, 6)
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(inputs).square().sum().backward()
        copied[1](copied[0](inputs.to("simgpu:0")).to("simgpu:1")).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    assert_same_bits(model.state_dict(), copied.state_dict())
    assert [p.device.index for p in copied.parameters()] == [0, 0, 1, 1]


# --- Modules ------------------------------------------------------------------------------------------------


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


def test_a_model_moves_from_gpu_to_gpu_and_changes_its_type():
    model = built("cnn").to("simgpu:1").to("simgpu:2", torch.float64)
    assert {p.device.index for p in model.parameters()} == {2}
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert model.norm.running_mean.device == simgpu.device(2)
    assert model.norm.num_batches_tracked.dtype is torch.int64, "whole numbers keep their type"
    assert model.half().first.weight.dtype is torch.float16
    assert nn.Linear(2, 2).simgpu(3).weight.device == simgpu.device(3)


def test_state_dicts_go_in_and_out_between_devices():
    source, target = built("cnn"), on_gpu(nn.Sequential(built("cnn")), 1)[0]
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.zero_()
    target.load_state_dict(source.state_dict())
    assert {value.device.index for value in target.state_dict().values()} == {1}
    assert_same_bits(source.state_dict(), target.state_dict())
    again = built("cnn")
    with torch.no_grad():
        again.first.weight.zero_()
    again.load_state_dict(target.state_dict())
    assert again.first.weight.device.type == "cpu"
    assert_same_bits(source.state_dict(), again.state_dict())


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


def test_weight_norm_and_spectral_norm_work():
    for parametrize in (nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm):
        torch.manual_seed(2)
        model = parametrize(nn.Linear(3, 4))
        copied, inputs = on_gpu(model, 1), torch.randn(2, 3)
        outputs = model(inputs), copied(inputs.to("simgpu:1"))
        for out in outputs:
            out.sum().backward()
        assert same_bits(*outputs)
        assert_same_bits(*({n: p.grad for n, p in net.named_parameters()} for net in (model, copied)))


# --- New tensors --------------------------------------------------------------------------------------------

FACTORIES = {
    "arange": lambda d: torch.arange(1, 7, 2, device=d),
    "zeros": lambda d: torch.zeros(2, 3, device=d),
    "ones": lambda d: torch.ones(2, dtype=torch.bool, device=d),
    "full": lambda d: torch.full((2,), 2.5, device=d),
    "tensor": lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
    "as_tensor": lambda d: torch.as_tensor([1.0, 2.0], device=d),
    "eye": lambda d: torch.eye(3, 2, device=d),
    "linspace": lambda d: torch.linspace(0, 1, 5, device=d),
    "logspace": lambda d: torch.logspace(0, 1, 3, device=d),
    "tril_indices": lambda d: torch.tril_indices(3, 3, device=d),
    "rand": lambda d: torch.rand(3, device=d),
    "randn": lambda d: torch.randn(3, device=d),
    "randint": lambda d: torch.randint(2, 9, (5,), device=d),
    "randperm": lambda d: torch.randperm(6, device=d),
    "normal": lambda d: torch.normal(0.0, 1.0, (3,), device=d),
    "zeros_like": lambda d: torch.zeros_like(torch.ones(2), device=d),
    "randn_like": lambda d: torch.randn_like(torch.ones(2, device=d)),
    "rand_like": lambda d: torch.rand_like(torch.ones(2), device=d),
    "new_zeros": lambda d: torch.ones(2, device=d).new_zeros(3),
    "new_full": lambda d: torch.ones(2, device=d).new_full((3,), 4.0),
    "new_tensor": lambda d: torch.ones(2, device=d).new_tensor([3.0]),
    "one_hot": lambda d: F.one_hot(torch.tensor([1, 0], device=d), 3),
    "bernoulli": lambda d: torch.bernoulli(torch.full((9,), 0.5, device=d)),
    "multinomial": lambda d: torch.multinomial(torch.ones(5, device=d), 3),
    "uniform_": lambda d: torch.empty(4, device=d).uniform_(),
    "xavier": lambda d: nn.init.xavier_uniform_(torch.empty(3, 3, device=d)),
    "orthogonal": lambda d: nn.init.orthogonal_(torch.empty(3, 3, device=d)),
    "trunc_normal": lambda d: nn.init.trunc_normal_(torch.empty(3, 3, device=d)),
    "hann_window": lambda d: torch.hann_window(4, device=d),
    "meshgrid": lambda d: torch.meshgrid(torch.arange(2, device=d), torch.arange(3, device=d), indexing="ij")[1],
    "block_diag": lambda d: torch.block_diag(torch.ones(2, 2, device=d), torch.ones(1, 2, device=d)),
    "pad_sequence": lambda d: nn.utils.rnn.pad_sequence([torch.ones(2, device=d), torch.ones(3, device=d)]),
    "complex": lambda d: torch.complex(torch.ones(2, device=d), torch.ones(2, device=d)),
    "square_subsequent_mask": lambda d: nn.Transformer.generate_square_subsequent_mask(3, device=d),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_new_tensors_are_on_the_gpu_that_was_named_and_have_the_cpus_numbers(name):
    for home in ("simgpu:0", "simgpu:1", "simgpu:3"):
        torch.manual_seed(4)
        expected = FACTORIES[name]("cpu")
        torch.manual_seed(4)
        found = FACTORIES[name](home)
        assert isinstance(found, simgpu.SimTensor)
        assert found.device == torch.device(home)
        assert same_bits(expected, found)


def test_each_gpu_draws_its_own_random_numbers():
    torch.manual_seed(4)
    first = torch.randn(3, device="simgpu:1")
    torch.randn(3), torch.randn(3, device="simgpu:2")
    second = torch.randn(3, device="simgpu:1")
    torch.manual_seed(4)
    assert torch.equal(torch.randn(6, device="simgpu:1")[:3], first)
    assert not torch.equal(first, second)
    state = torch.simgpu.get_rng_state(1)
    drawn = torch.randn(3, device="simgpu:1")
    torch.simgpu.set_rng_state(state, 1)
    assert torch.equal(torch.randn(3, device="simgpu:1"), drawn)


@pytest.mark.parametrize("gpu", [0, 1])
def test_seeding_all_gpus_seeds_each_of_them(gpu):
    drawn = []
    for _ in range(2):
        torch.simgpu.manual_seed_all(4)
        drawn.append(torch.randn(3, device=f"simgpu:{gpu}"))
    assert torch.equal(*drawn)


def test_threads_on_several_gpus_draw_the_same_numbers_every_time():
    def draw(gpu, into):
        x = torch.ones(50, device=f"simgpu:{gpu}")
        into[gpu] = torch.stack([F.dropout(x, 0.5) for _ in range(100)])

    for _ in range(3):
        drawn, alone = {}, {}
        torch.manual_seed(4)
        threads = [threading.Thread(target=draw, args=(gpu, drawn)) for gpu in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.manual_seed(4)
        for gpu in range(4):
            draw(gpu, alone)
        assert [gpu for gpu in range(4) if not torch.equal(drawn[gpu], alone[gpu])] == []


def test_a_generator_of_the_cpu_can_be_passed():
    expected = torch.randn(3, generator=torch.Generator().manual_seed(9))
    assert same_bits(torch.randn(3, device="simgpu:1", generator=torch.Generator().manual_seed(9)), expected)


def test_the_default_device_can_be_a_simulated_gpu():
    torch.set_default_device("simgpu:2")
    try:
        assert torch.ones(2).device == nn.Linear(2, 2).weight.device == simgpu.device(2)
    finally:
        torch.set_default_device(None)


def test_without_a_number_the_current_gpu_is_meant():
    with torch.simgpu.device(2):
        assert torch.simgpu.current_device() == 2
        assert torch.ones(1, device="simgpu").device == simgpu.device(2)
        assert torch.ones(1).simgpu().device == simgpu.device(2)
        assert torch.ones(1).to("simgpu").device == simgpu.device(2)
        assert nn.Linear(1, 1).simgpu().weight.device == simgpu.device(2)
        assert torch.ones(1, device="simgpu:1").to("simgpu").device == simgpu.device(2)
        assert torch.ones(1, device="simgpu:1").add(1).device == simgpu.device(1), (
            "operators stay where their inputs are"
        )
    assert torch.ones(1, device="simgpu").device == simgpu.device(0)


class WhereAmI(torch.autograd.Function):
    seen: ClassVar[list[int]] = []

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        WhereAmI.seen.append(torch.simgpu.current_device())
        return gradient + torch.zeros(2, device="simgpu")


@pytest.mark.parametrize("chosen", (0, 1))
def test_backward_of_a_function_works_with_the_gpu_of_its_gradients(chosen):
    WhereAmI.seen.clear()
    x = torch.ones(2, device="simgpu:1", requires_grad=True)
    with torch.simgpu.device(chosen):
        WhereAmI.apply(WhereAmI.apply(x).to("simgpu:2")).sum().backward()
        assert WhereAmI.seen == [2, 1]
        assert torch.simgpu.current_device() == chosen


# --- Operators ----------------------------------------------------------------------------------------------


def _in_place(x):
    x = x.clone()
    x.add_(1).mul_(2).clamp_(max=3)
    x[0] = 7
    x[:, 1] -= 1
    x[x > 6] = 0
    x.t_().unsqueeze_(0).squeeze_(0)
    return x.transpose_(0, 1).fill_diagonal_(5).zero_().add_(x + 1)


def _item_assignment(x):
    x = x.clone()
    x[1, 2] = 3.5
    x[torch.tensor([0, 1])] = 1.0
    x[torch.tensor([2], device=x.device), 0] = torch.tensor(9.0)
    x[..., 3] = x[..., 0] * 2
    x[1:3, ::2] = torch.zeros(2, 2)
    x[-1].copy_(torch.arange(4.0))
    return x


def _views(x):
    return torch.cat([x.t().reshape(-1), x[1:, ::2].flatten(), x.view(2, -1)[1], x.expand(2, 3, 4)[1].ravel()])


OPERATORS = {
    "in place": _in_place,
    "item assignment": _item_assignment,
    "views": _views,
    "where": lambda x: torch.where(x > 0, x, -1.0),
    "scatter_add_": lambda x: torch.zeros_like(x).scatter_add_(1, (x > 0).long(), x),
    "gather": lambda x: x.gather(1, (x > 0).long()),
    "index_add_": lambda x: torch.zeros_like(x).index_add_(0, torch.tensor([0, 0, 1], device=x.device), x),
    "topk": lambda x: torch.cat(list(x.topk(2))),
    "sort": lambda x: torch.cat(list(x.sort(1, descending=True))),
    "argmax": lambda x: x.argmax(1),
    "max over rows": lambda x: torch.cat(list(x.max(0))),
    "comparison": lambda x: (x == x.round()) | (x > 0),
    "stack and split": lambda x: torch.stack(x.split([1, 2])[1].chunk(2, 1) + x[1:].chunk(2, 1)),
    "bincount": lambda x: torch.bincount((x > 0).long().flatten(), minlength=4),
    "cumsum": lambda x: x.cumsum(1),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "advanced indexing": lambda x: x[[2, 0]][:, [True, False, True, True]],
    "mask": lambda x: x[x > 0],
    "nonzero": lambda x: (x > 0).nonzero(),
    "unique": lambda x: x.round().unique(),
    "interpolate": lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    "pad and roll": lambda x: F.pad(x, (1, 2)).roll(1, 0),
    "convolution": lambda x: F.conv1d(x[None], x.t()[:, :, None]).relu(),
    "qr": lambda x: torch.linalg.qr(x)[1],
    "inverse": lambda x: torch.linalg.inv(x[:, :3] @ x[:, :3].T + torch.eye(3, device=x.device)),
    "complex": lambda x: torch.fft.fft(x).conj().abs() + torch.view_as_real(x.to(torch.complex64).mul(1j)).sum(-1),
    "ifft": lambda x: torch.fft.ifft(x).real,
    "float64": lambda x: x.double().exp().sum(0),
    "whole numbers": lambda x: (x * 10).int() // 3 % 2,
    "norms": lambda x: torch.stack([x.norm(), x.norm(1), x.std(), x.var(), x.mean(), x.median()]),
    "nan": lambda x: (x.sqrt()).nan_to_num(3).add(torch.full_like(x, float("nan")).nansum()),
    "python sum": lambda x: sum(x),
    "map over rows": lambda x: torch.stack([row * i for i, row in enumerate(x)]),
    "out": lambda x: torch.add(x, x, out=torch.empty_like(x)),
    "cat with nothing": lambda x: torch.cat([x, x[:0]]),
    "where with nothing": lambda x: torch.where(x[:0] > 0, x[:0], 0),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_give_the_cpus_numbers_on_any_gpu(name):
    x = torch.randn(3, 4)
    expected = OPERATORS[name](x)
    for home in GPUS:
        found = OPERATORS[name](x.to(home))
        assert found.device == torch.device(home)
        assert same_bits(expected, found)
        assert found.shape == expected.shape
        assert found.stride() == expected.stride()


def test_the_gradient_of_operators_is_the_cpus():
    for name in ("views", "where", "gather", "topk", "cumsum", "einsum", "interpolate", "convolution", "ifft", "norms"):
        x = torch.randn(3, 4, requires_grad=True)
        y = x.detach().to("simgpu:1").requires_grad_()
        for tensor in (x, y):
            OPERATORS[name](tensor).square().sum().backward()
        assert y.grad.device == simgpu.device(1), name
        assert same_bits(x.grad, y.grad), name


def test_a_result_of_another_shape_can_go_into_an_output():
    x, out = torch.ones(3, 4, device="simgpu:1"), torch.empty(0, device="simgpu:1")
    try:
        torch.add(x, x, out=out)
    except (RuntimeError, NotImplementedError) as error:
        assert "out" in str(error) or "resize" in str(error)
    else:
        assert out.shape == (3, 4), "it says one shape and holds another"
        assert out.tolist() == [[2.0] * 4] * 3


def test_views_that_change_their_own_shape_do_it_everywhere():
    x = torch.arange(6.0, device="simgpu:1").view(2, 3)
    same = x.t_()
    assert same is x
    assert (x.shape, x.stride()) == ((3, 2), (1, 3))
    x.unsqueeze_(0)
    assert x.shape == (1, 3, 2)
    assert x.squeeze_().tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_a_change_through_a_view_is_seen_by_the_whole():
    whole = torch.zeros(3, 4, device="simgpu:1")
    whole[1].add_(1)
    whole.t()[0] = 7
    assert whole.tolist() == [[7.0, 0.0, 0.0, 0.0], [7.0, 1.0, 1.0, 1.0], [7.0, 0.0, 0.0, 0.0]]
    whole.data[2] = 5
    assert whole[2].tolist() == [5.0] * 4


def test_tensors_compare():
    x = torch.arange(3.0, device="simgpu:1")
    assert torch.equal(x, x.clone())
    assert not torch.equal(x, x + 1)
    assert (x == x.clone()).all()
    assert torch.allclose(x, x + 1e-9)
    assert_close(x, x.clone())
    with pytest.raises(AssertionError, match="not close"):
        assert_close(x, x + 1)


def test_tensors_turn_into_pythons_numbers():
    x = torch.tensor([1.5, 2.0], device="simgpu:1")
    assert (x[0].item(), float(x[0]), int(x[1]), bool(x[0]), len(x), x.tolist()) == (1.5, 1.5, 2, True, 2, [1.5, 2.0])
    assert 2.0 in x
    assert [10, 20, 30][torch.tensor(1, device="simgpu:1")] == 20
    assert f"loss {x.mean():.3f}" == "loss 1.750"
    assert f"{x[0]}" == "1.5"


def test_a_tensor_shows_its_numbers_and_its_gpu():
    x = torch.tensor([1.0, 2.0], device="simgpu:2", requires_grad=True)
    assert repr(x.detach()) == "tensor([1., 2.], device='simgpu:2')"
    assert repr(x) == "tensor([1., 2.], device='simgpu:2', requires_grad=True)"
    assert repr(x * 2) == "tensor([2., 4.], device='simgpu:2', grad_fn=<MulBackward0>)"
    assert "device='simgpu:1'" in repr(nn.Parameter(torch.ones(2, device="simgpu:1")))


def test_copies_between_devices_are_copies():
    x = torch.arange(3.0, device="simgpu:1")
    assert x.to("simgpu:1") is x
    assert x.to("simgpu:1", copy=True) is not x
    assert x.to("simgpu:2", torch.float64).dtype is torch.float64
    assert x.to(torch.device("simgpu:1"), torch.float32, False, True) is not x
    assert x.to(torch.ones(1, dtype=torch.int32, device="simgpu:3")).device == simgpu.device(3)
    assert x.to("cpu", torch.int64).tolist() == [0, 1, 2]
    assert torch.as_tensor(x, device="simgpu:2").device == simgpu.device(2)
    assert torch.Tensor.to(x, "simgpu:2").device == torch.Tensor.to(x, device="simgpu:2").device == simgpu.device(2)
    other = x.to("simgpu:2")
    other += 1
    host = x.cpu()
    host += 1
    assert x.tolist() == [0.0, 1.0, 2.0]
    x.copy_(other)
    assert (x.device, x.tolist()) == (simgpu.device(1), [1.0, 2.0, 3.0])
    x[1:] = host[:2]
    host[0] = x[1]
    assert (x.tolist(), host.tolist()) == ([1.0, 1.0, 2.0], [1.0, 2.0, 3.0])


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


def test_data_can_be_replaced():
    p = nn.Parameter(torch.ones(3, device="simgpu:1"))
    p.data = p.data * 2
    p.data -= 1
    p.data[0] = 9
    assert p.tolist() == [9.0, 1.0, 1.0]
    with torch.no_grad():
        p -= 1
    assert p.tolist() == [8.0, 0.0, 0.0]


# --- Torch stays as it was ----------------------------------------------------------------------------------


def _python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_alone_imports_no_torch():
    _python("import sys, utils, utils.training.models, utils.draw; assert 'torch' not in sys.modules")


def test_torch_hears_of_simulated_gpus_only_when_there_are_some():
    code = (
        "import torch, utils, utils.training.models\n"
        "import simgpu\n"
        "print(torch._C._get_privateuse1_backend_name(), hasattr(torch, 'simgpu'))\n"
        "simgpu.cluster(gpus_per_node=2)\n"
        "print(torch._C._get_privateuse1_backend_name(), torch.simgpu.device_count(), torch.ones(2))\n"
    )
    assert _python(code).splitlines() == ["privateuseone False", "simgpu 2 tensor([1., 1.])"]


def test_ordinary_tensors_train_as_before():
    model = built("mlp")
    assert type(model(MODELS["mlp"][1])) is torch.Tensor
    model(MODELS["mlp"][1]).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.optim.Adam(model.parameters(), foreach=True).step()
    assert allocated() == [0] * 4
