"""Operators and new tensors on simulated GPUs: the CPU's numbers, bit for bit, on the right GPU."""

import threading

import pytest
import torch
from simgpu_support import same_bits
from torch import nn
from torch.nn import functional as F

import simgpu

pytestmark = pytest.mark.numeric

GPUS = ["simgpu:0", "simgpu:1"]


@pytest.fixture(autouse=True)
def _cluster():
    simgpu.cluster(gpus_per_node=4)
    torch.manual_seed(0)


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
