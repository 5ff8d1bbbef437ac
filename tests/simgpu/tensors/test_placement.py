"""Which GPU a tensor is on: what mixes devices or types is refused as CUDA refuses it."""

import warnings

import pytest
import torch
from simgpu_support import ones
from torch import nn
from torch.nn import functional as F

import simgpu

pytestmark = pytest.mark.usefixtures("three_gpus")


def labels(gpu=None):
    return torch.zeros(3, dtype=torch.long, device="cpu" if gpu is None else f"simgpu:{gpu}")


MIXED = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: b - a,
    "in place": lambda a, b: a.add_(b),
    "matrix product": lambda a, b: a @ b,
    "linear": lambda a, b: nn.Linear(3, 3).to(a.device)(b),
    "functional linear": lambda a, b: F.linear(a, b),
    "cat": lambda a, b: torch.cat([a, b]),
    "stack": lambda a, b: torch.stack([b, a]),
    "embedding": lambda a, b: nn.Embedding(4, 3).to(a.device)(b.long()),
    "cross entropy": lambda a, b: F.cross_entropy(a, b[0].long()),
    "mse": lambda a, b: F.mse_loss(a, b),
    "gather": lambda a, b: a.gather(0, b.long()),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "lerp": lambda a, b: torch.lerp(a, b, 0.5),
    "addcmul": lambda a, b: torch.addcmul(a, b, b),
    "out": lambda a, b: torch.add(a, a, out=b),
    "layer norm": lambda a, b: F.layer_norm(a, (3,), b[0]),
    "batch norm": lambda a, b: nn.BatchNorm1d(3).to(a.device)(b),
    "convolution": lambda a, b: F.conv1d(a[None], b[..., None]),
    "attention": lambda a, b: F.scaled_dot_product_attention(a[None, None], b[None, None], b[None, None]),
    "comparison": lambda a, b: a == b,
    "equal": lambda a, b: torch.equal(a, b),
    "scatter": lambda a, b: a.scatter_(0, b.long(), 1.0),
    "masked fill": lambda a, b: a.masked_fill(b > 0, 0.0),
    "dot": lambda a, b: a[0].dot(b[0]),
    "einsum": lambda a, b: torch.einsum("ij,jk->ik", a, b),
    "product after factories": lambda a, b: torch.zeros_like(a) + torch.zeros_like(b),
}


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, None), (None, 1)])
@pytest.mark.parametrize("name", MIXED)
def test_tensors_on_two_devices_are_refused_in_cudas_words(name, first, second):
    a, b = (torch.ones(3, 3) if gpu is None else ones(3, 3, gpu=gpu) for gpu in (first, second))
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device") as error:
        MIXED[name](a, b)
    for gpu in (first, second):
        assert ("cpu" if gpu is None else f"simgpu:{gpu}") in str(error.value)


def test_what_cuda_allows_is_allowed():
    a = ones(3, 3, gpu=1)
    assert (a + torch.tensor(2.0)).device == a.device, "a number of the CPU"
    assert (torch.tensor(2.0) * a).device == a.device
    assert a[torch.tensor([0, 2])].shape == (2, 3), "an index of the CPU"
    assert a[torch.ones(3, dtype=torch.bool)].shape == (3, 3)
    a[torch.tensor([0])] = 5.0
    a[0] = torch.zeros(3)
    a[1] = ones(3, gpu=2)
    assert a.copy_(ones(3, 3, gpu=0)).device == simgpu.device(1)
    with pytest.raises(RuntimeError, match="same device"):
        a + torch.tensor(2.0, device="simgpu:2")


@pytest.mark.parametrize("numbers", [True, False])
def test_a_number_of_the_cpu_is_taken_by_what_takes_it_on_cuda(numbers):
    simgpu.cluster(gpus_per_node=1, numbers=numbers)
    a, number = ones(3, 3, gpu=0), torch.tensor(2.0)
    mask, index = a > 0, labels(0)
    for result in (a.masked_fill(mask, number), a.masked_fill_(mask, number), torch.where(mask, a, number),
                   a.index_fill(0, index, number), a.index_fill_(0, index, number), a.clamp(min=number)):  # fmt: skip
        assert (result.device, result.shape) == (a.device, (3, 3))
    with pytest.raises(RuntimeError, match="same device"):
        torch.stack([a[0, 0], number])


OF_ONE_TYPE = {
    "mm": lambda a, b: a @ b,
    "linear": lambda a, b: F.linear(b, a),
    "addmm": lambda a, b: F.linear(a, a, b[0]),
    "mv": lambda a, b: a @ b[0],
    "bmm": lambda a, b: torch.bmm(a[None], b[None]),
    "convolution": lambda a, b: F.conv1d(a[None], b[..., None]),
    "attention": lambda a, b: F.scaled_dot_product_attention(a[None, None], b[None, None], b[None, None]),
    "mask": lambda a, b: F.scaled_dot_product_attention(*[a[None, None]] * 3, attn_mask=b),
    "index_put_": lambda a, b: a.index_put_((labels(0),), b),
    "index_add_": lambda a, b: a.index_add_(0, labels(0), b),
    "index_copy": lambda a, b: a.index_copy(0, labels(0), b),
}


@pytest.mark.parametrize("numbers", [True, False])
@pytest.mark.parametrize("name", OF_ONE_TYPE)
def test_mixed_types_are_refused_where_cuda_refuses_them(name, numbers):
    simgpu.cluster(gpus_per_node=1, numbers=numbers)
    a = ones(3, 3, gpu=0)
    OF_ONE_TYPE[name](a, a.clone())
    for other in (torch.float64, torch.bfloat16):
        with pytest.raises(RuntimeError, match=r"type"):
            OF_ONE_TYPE[name](a, a.to(other))


def test_the_message_names_the_operator_and_the_cure():
    with pytest.raises(RuntimeError, match=r"devices, simgpu:0 and simgpu:1! \(in addmm; move one of them with \.to"):
        nn.Linear(3, 3).to("simgpu:0")(ones(2, 3, gpu=1))


def test_a_tensor_of_the_cpu_cannot_be_indexed_by_one_of_a_gpu():
    index = torch.tensor([0], device="simgpu:1")
    for function in (lambda x: x[index], lambda x: x[index > 0], lambda x: x.__setitem__(index, 0.0)):
        with pytest.raises(RuntimeError, match=r"indices should be either on cpu or on the same device|same device"):
            function(torch.ones(1))


def test_a_gradient_of_another_device_is_refused():
    p = nn.Parameter(ones(3, gpu=0))
    for wrong in (ones(3, gpu=1), torch.ones(3)):
        with pytest.raises(RuntimeError, match=r"assigned grad has data located on a different device|device"):
            p.grad = wrong
    assert p.grad is None
    p.grad = ones(3, gpu=0)
    torch.optim.SGD([p], lr=1.0).step()
    assert p.tolist() == [0.0] * 3


def test_numpy_asks_for_the_cpu_first_as_cuda_does():
    x = ones(3, gpu=1)
    for function in (lambda: x.numpy(), lambda: __import__("numpy").asarray(x), lambda: __import__("numpy").sin(x)):
        with pytest.raises(
            TypeError, match=r"can't convert simgpu:1 device type tensor to numpy\. Use Tensor\.cpu\(\)"
        ):
            function()
    assert x.cpu().numpy().tolist() == [1.0] * 3


UNSUPPORTED = {
    "sparse": lambda x: x.to_sparse(),
    "sparse gradient": lambda x: nn.Embedding(3, 2, sparse=True).to(x.device)(x[0].long() * 0).sum().backward(),
    "sparse by hand": lambda x: torch.sparse_coo_tensor(
        torch.zeros(1, 1, dtype=torch.long), torch.ones(1), device=x.device
    ),
    "set_": lambda x: x.set_(torch.ones(3)),
    "dlpack": lambda x: torch.utils.dlpack.to_dlpack(x),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_cannot_be_simulated_is_refused_in_one_sentence(name):
    x = ones(3, 3, gpu=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises((NotImplementedError, RuntimeError, BufferError)) as error:
            UNSUPPORTED[name](x)
    words = str(error.value)
    assert len(words.splitlines()) == 1, words
    assert "simulated GPU" in words or "simgpu:1" in words, words
    assert "INTERNAL ASSERT" not in words
    assert (x + 1).sum().item() == 18, "everything else still works"


def test_a_parameter_from_the_host_is_swapped_and_one_from_a_gpu_is_not() -> None:
    """``SimTensor.__tensor_flatten__``: Module.to asks whether there is such an attribute, and swaps if there is."""
    model = nn.Linear(2, 2)
    weight = model.weight
    model.to("simgpu:1")
    assert model.weight is weight and hasattr(torch.ones(2).to("simgpu:1"), "__tensor_flatten__")
    graph = model(torch.ones(1, 2, device="simgpu:1")).sum()  # swapping would fail while it uses the parameters
    made = nn.Linear(2, 2, device="simgpu:0").weight * 1
    assert not hasattr(made, "__tensor_flatten__")
    model.to("simgpu:2")
    assert model.weight is weight and weight.device == simgpu.device(2)
    assert graph.grad_fn is not None


def test_a_helper_of_an_operator_follows_its_input_and_a_tensor_of_another_line_does_not() -> None:
    """``placement.gpu_of_new_tensor``: what C++ creates "on the device of the input", for it always number 0."""
    x = torch.ones(3, 3, device="simgpu:2")
    assert torch.nn.functional.one_hot(torch.arange(3, device="simgpu:2")).device == simgpu.device(2)
    mine = torch.ones(3, 3, device="simgpu:0")
    with pytest.raises(RuntimeError, match="same device"):
        mine + x
