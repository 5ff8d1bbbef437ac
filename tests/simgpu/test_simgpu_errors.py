"""What goes wrong on CUDA goes wrong on simulated GPUs, with the same kind of error and in clear words."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from simgpu_support import allocated
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import simgpu


@pytest.fixture(autouse=True)
def _cluster():
    simgpu.cluster(gpus_per_node=3)
    torch.manual_seed(0)


def ones(*shape, gpu):
    return torch.ones(*shape, device=f"simgpu:{gpu}")


def labels(gpu=None):
    return torch.zeros(3, dtype=torch.long, device="cpu" if gpu is None else f"simgpu:{gpu}")


# --- Mixing devices -----------------------------------------------------------------------------------------

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


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0), (1, 2), (1, None), (None, 1)])
@pytest.mark.parametrize("name", MIXED)
def test_tensors_on_two_devices_are_refused_in_cudas_words(name, first, second):
    a, b = (torch.ones(3, 3) if gpu is None else ones(3, 3, gpu=gpu) for gpu in (first, second))
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device") as error:
        MIXED[name](a, b)
    for gpu in (first, second):
        assert ("cpu" if gpu is None else f"simgpu:{gpu}") in str(error.value)


def test_an_index_of_another_gpu_is_refused():
    for home, other in ((0, 1), (1, 0), (1, 2)):
        with pytest.raises(RuntimeError, match="same device"):
            ones(3, gpu=home)[labels(other)]
        with pytest.raises(RuntimeError, match="same device"):
            ones(3, gpu=home)[labels(other)] = 0.0


def test_new_tensors_of_two_gpus_are_refused_even_in_one_line():
    with pytest.raises(RuntimeError, match="same device"):
        torch.zeros(3, device="simgpu:0") + torch.zeros(3, device="simgpu:1")
    with pytest.raises(RuntimeError, match="same device"):
        torch.arange(3, device="simgpu:2") * torch.arange(3, device="simgpu:0")
    with pytest.raises(RuntimeError, match="same device"):
        torch.cat([torch.zeros(3, device="simgpu:1"), torch.zeros(3, device="simgpu:0")])
    x = torch.zeros(3, device="simgpu:0")
    with pytest.raises(RuntimeError, match="same device"):
        x.add_(torch.zeros(3, device="simgpu:1"))


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


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_a_step_with_a_gradient_of_another_gpu_fails(optimizer):
    p, q = nn.Parameter(ones(3, gpu=0)), nn.Parameter(ones(3, gpu=1))
    algorithm = optimizer([p, q], lr=1.0)
    p.grad, q.grad = ones(3, gpu=0), ones(3, gpu=1)
    algorithm.step()
    with pytest.raises(RuntimeError, match="device"):
        p.data = ones(3, gpu=2)  # its gradient stays behind
        algorithm.step()


def test_backward_from_a_gradient_of_another_device_fails():
    for wrong in (ones(3, gpu=0), torch.ones(3)):
        x = ones(3, gpu=1).requires_grad_()
        with pytest.raises(RuntimeError, match="device"):
            (x * 2).backward(wrong)


def test_a_function_that_returns_a_gradient_of_another_gpu_fails():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad.to("simgpu:0")

    x = ones(3, gpu=1).requires_grad_()
    with pytest.raises(RuntimeError, match="device"):
        Wrong.apply(x * 1).sum().backward()


# --- GPUs that are not there --------------------------------------------------------------------------------

MISSING = {
    "factory": lambda: torch.ones(1, device="simgpu:9"),
    "like": lambda: torch.zeros_like(torch.ones(1), device="simgpu:3"),
    "new": lambda: ones(1, gpu=1).new_zeros(3, device="simgpu:9"),
    "tensor": lambda: torch.tensor([1.0], device="simgpu:3"),
    "from the cpu": lambda: torch.ones(1).to("simgpu:3"),
    "from a gpu": lambda: ones(1, gpu=1).to("simgpu:3"),
    "method": lambda: torch.ones(1).simgpu(3),
    "module": lambda: nn.Linear(2, 2).to("simgpu:7"),
    "set_device": lambda: torch.simgpu.set_device(3),
    "device context": lambda: torch.simgpu.device(9),
    "stream": lambda: simgpu.Stream(3),
    "memory": lambda: torch.simgpu.memory_allocated(3),
    "on": lambda: simgpu.on(3).__enter__(),
    "simgpu.device": lambda: simgpu.device(3),
    "autocast region": lambda: torch.simgpu.synchronize(5),
}


@pytest.mark.parametrize("name", MISSING)
def test_a_gpu_that_does_not_exist_is_an_invalid_device_ordinal(name):
    with pytest.raises(RuntimeError, match=r"invalid device ordinal: simgpu:\d .*has 3 GPUs, simgpu:0 to simgpu:2"):
        MISSING[name]()
    assert allocated() == [0, 0, 0]


def test_clusters_that_cannot_be_are_refused():
    for options, words in (
        ({"gpus_per_node": 0}, "gpus_per_node must be a whole number from 1"),
        ({"gpus_per_node": -1}, "from 1 to 1024, not -1"),
        ({"gpus_per_node": 2.0}, "whole number"),
        ({"gpus_per_node": True}, "whole number"),
        ({"gpus_per_node": 2000}, "from 1 to 1024, not 2000"),
        ({"nodes": 0}, "nodes must be"),
        ({"nodes": 129}, "from 1 to 128, not 129"),
        ({"nodes": 128, "gpus_per_node": 16}, "128 nodes × 16 GPUs are 2048 GPUs: simulate at most 1024"),
        ({"gpu": "H100 SMX"}, "Did you mean 'H100 SXM'"),
        ({"gpu": ["H100"] * 3}, "names 3 GPUs, but the cluster has 4"),
        ({"gpu": ["H100", "H100", "H100", "abacus"]}, "no GPU called 'abacus'"),
        ({"launch_s": -1.0}, "at least 0"),
        ({"memory": 0}, "memory"),
        ({"nics_per_node": 0}, "nics_per_node"),
    ):
        with pytest.raises(ValueError, match=words):
            simgpu.cluster(**options)


def test_a_cluster_that_is_refused_leaves_the_old_one():
    x = ones(3, gpu=1)
    with pytest.raises(ValueError, match="no GPU called"):
        simgpu.cluster(gpu="abacus")
    assert (x + 1).tolist() == [2.0] * 3


def test_a_device_of_another_kind_is_no_simulated_gpu():
    with pytest.raises(RuntimeError, match="cpu is no simulated GPU"):
        torch.simgpu.memory_allocated("cpu")


# --- Tensors of an earlier cluster --------------------------------------------------------------------------

OUTDATED = {
    "operator": lambda x: x + 1,
    "operator with a new one": lambda x: ones(3, gpu=1) + x,
    "to a gpu": lambda x: x.to("simgpu:0"),
    "cpu": lambda x: x.cpu(),
    "item": lambda x: x[0].item(),
    "list": lambda x: x.tolist(),
    "copy into": lambda x: ones(3, gpu=1).copy_(x),
    "copy from": lambda x: x.copy_(torch.ones(3)),
    "backward": lambda x: x.sum().backward(),
    "in place": lambda x: x.detach().add_(1),
    "view": lambda x: x[1:] + 0,
    "foreach": lambda x: torch._foreach_add([x.detach()], 1.0),
    "save": lambda x: torch.save(x, "/dev/null"),
    "if": lambda x: bool(x[0] > 0),
}


@pytest.mark.parametrize("name", OUTDATED)
def test_a_tensor_of_an_earlier_cluster_says_so(name):
    x = ones(3, gpu=1).requires_grad_()
    simgpu.cluster(gpus_per_node=3)
    with pytest.raises(RuntimeError, match="earlier simulated cluster"), torch.set_grad_enabled(name == "backward"):
        OUTDATED[name](x)
    assert allocated() == [0, 0, 0] or name in ("operator with a new one", "copy into")


def test_backward_through_an_earlier_cluster_says_so():
    loss = (ones(3, gpu=1).requires_grad_() * 2).sum()
    simgpu.cluster(gpus_per_node=3)
    with pytest.raises(RuntimeError, match="earlier simulated cluster"):
        loss.backward()


def test_a_tensor_of_an_earlier_cluster_can_be_shown_and_dropped():
    x = ones(3, gpu=1)
    simgpu.cluster(gpus_per_node=1)
    assert "simgpu:1" in repr(x)
    assert x.shape == (3,)
    assert x.device.index == 1
    del x
    assert allocated() == [0]


def test_streams_and_events_of_an_earlier_cluster_do_not_disturb_the_new_one():
    old = simgpu.Stream(1)
    simgpu.cluster(gpus_per_node=2, gpu="toy", launch_s=0)
    x = torch.ones(1000, 1000, device="simgpu:1")
    with simgpu.profile() as prof:
        try:
            with simgpu.stream(old):
                x @ x
        except RuntimeError:
            x @ x
    assert prof.elapsed == pytest.approx(2e-4)
    assert torch.simgpu.current_stream(1) is torch.simgpu.default_stream(1)


# --- Before there is a cluster ------------------------------------------------------------------------------


def _python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2]
    )


def test_without_a_cluster_everything_says_what_to_call():
    code = """
import torch
from torch import nn
import simgpu
calls = [
    lambda: simgpu.device(0), lambda: simgpu.profile(), lambda: simgpu.synchronize(), lambda: simgpu.Stream(0),
    lambda: simgpu.current(), lambda: simgpu.Event().record(), lambda: simgpu.on(0),
    lambda: simgpu.region("F").__enter__(),
]
for i, call in enumerate(calls):
    try:
        call()
        print(i, "no error")
    except (RuntimeError, ValueError) as error:
        print(i, "simgpu.cluster(" in str(error) or str(error))
model = nn.DataParallel(nn.Linear(2, 2))
print(model(torch.ones(3, 2)).shape, hasattr(torch, "simgpu"))
x = torch.ones(3, requires_grad=True)
x.sum().backward()
torch.save(x, "/dev/null")
"""
    done = _python(code)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines[:-1] if not line.endswith("True")] == []
    assert lines[-1] == "torch.Size([3, 2]) False"


# --- Errors in the middle of things -------------------------------------------------------------------------


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        raise KeyError("in the middle")


def _hook(x):
    y = x * 1

    def fail(_grad):
        raise KeyError("in the middle")

    y.register_hook(fail)
    return y


def _module_hook(x):
    layer = nn.Linear(3, 3).to(x.device)

    def fail(*_):
        raise KeyError("in the middle")

    layer.register_full_backward_hook(fail)
    return layer(x)


def _inside_checkpoint(use_reentrant):
    def function(x):
        calls = []

        def inner(x):
            calls.append(1)
            if len(calls) > 1:
                raise KeyError("in the middle")
            return x.sin().sin()

        return checkpoint(inner, x, use_reentrant=use_reentrant)

    return function


@pytest.mark.parametrize(
    "break_",
    [Broken.apply, _hook, _module_hook, _inside_checkpoint(True), _inside_checkpoint(False)],
    ids=["function", "hook of a tensor", "hook of a module", "checkpoint, reentrant", "checkpoint"],
)
@pytest.mark.parametrize("gpu", [0, 1])
def test_an_error_in_backward_comes_out_as_it_is_and_the_next_backward_works(gpu, break_):
    for _ in range(3):
        x = ones(3, 3, gpu=gpu).requires_grad_()
        with pytest.raises(KeyError, match="in the middle"):
            break_(x * 2).sin().sum().backward()
        (x * 3).sum().backward()
        with simgpu.profile() as prof:
            x.grad = None
            (x * 3).sum().backward()
        assert x.grad.tolist() == [[3.0] * 3] * 3
        assert {e.phase for e in prof.events} == {"forward", "backward"}
        del x
    assert allocated() == [0, 0, 0]


def test_an_error_of_an_operator_in_backward_comes_out_as_it_is():
    x = ones(3, gpu=1).requires_grad_()
    y = (x * 2).to("simgpu:2")

    def move(grad):
        return grad + torch.ones(3, device="simgpu:0")

    y.register_hook(move)
    with pytest.raises(RuntimeError, match="same device"):
        y.sum().backward()
    (x * 3).sum().backward()


def test_torchs_own_mistakes_get_torchs_own_words():
    x = ones(3, gpu=1).requires_grad_()
    y = (x * x).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        x.add_(1)
    z = x.exp()
    z.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()
    with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar"):
        (x * 2).backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        ones(3, gpu=1).sum().backward()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        ones(2, 3, gpu=1) @ ones(2, 3, gpu=1)
    with pytest.raises(IndexError):
        ones(2, gpu=1)[5]
    with pytest.raises(RuntimeError, match="size of tensor"):
        ones(2, gpu=1) + ones(3, gpu=1)


def test_an_error_in_an_operator_leaves_no_memory_behind():
    a, b = ones(2, 3, gpu=1), ones(2, 3, gpu=1)
    before = allocated()
    for _ in range(3):
        with pytest.raises(RuntimeError):
            a @ b
        with pytest.raises(RuntimeError):
            a.view(7)
    assert allocated() == before


# --- What a simulated GPU cannot do -------------------------------------------------------------------------


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


def test_a_compiled_model_gives_the_same_numbers_or_a_clear_error():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to("simgpu:1")
    x = torch.randn(5, 3, device="simgpu:1")
    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        try:
            out = torch.compile(model, backend=backend)(x)
            out.sum().backward()
        except Exception as error:
            assert "simulated" in str(error), error
        else:
            assert out.device == simgpu.device(1)
            torch.testing.assert_close(out, model(x))
    assert torch.equal(model(x), model(x))


# --- Shapes only --------------------------------------------------------------------------------------------

NEEDS_NUMBERS = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x[0]),
    "int": lambda x: int(x[0]),
    "bool": lambda x: bool(x[0] > 0),
    "if": lambda x: 1 if x.sum() > 0 else 2,
    "list": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "to cpu": lambda x: x.to("cpu"),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "masked_select": lambda x: torch.masked_select(x, x > 0),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x),
    "format": lambda x: f"{x.sum():.3f}",
    "copy into a cpu tensor": lambda x: torch.ones(3).copy_(x),
    "save": lambda x: torch.save(x, "/dev/null"),
    "bincount": lambda x: torch.bincount(x.long()),
    "repeat_interleave": lambda x: torch.repeat_interleave(x.long()),
}


@pytest.mark.parametrize("name", NEEDS_NUMBERS)
def test_without_numbers_whatever_needs_them_says_why(name):
    simgpu.cluster(gpus_per_node=2, numbers=False)
    x = ones(3, gpu=1)
    with pytest.raises(RuntimeError) as error:
        NEEDS_NUMBERS[name](x)
    words = str(error.value)
    assert "only shapes (numbers=False)" in words, words
    assert len(words.splitlines()) == 1
    assert (x + 1).shape == (3,)


def test_without_numbers_a_tensor_shows_its_shape():
    simgpu.cluster(gpus_per_node=2, numbers=False)
    x = ones(3, 4, gpu=1)
    assert repr(x) == "tensor(..., size=(3, 4), dtype=torch.float32, device='simgpu:1')"
    assert str(x) == f"{x}" == repr(x)
    assert "size=(4,)" in repr(nn.Linear(3, 4).to("simgpu:0").bias)
    assert repr(simgpu.current()).endswith("shapes only>")


def test_without_numbers_the_same_mistakes_are_found():
    simgpu.cluster(gpus_per_node=2, numbers=False)
    with pytest.raises(RuntimeError, match="same device"):
        ones(3, gpu=0) + ones(3, gpu=1)
    with pytest.raises(RuntimeError, match="same device"):
        ones(3, gpu=0) + torch.ones(3)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            ones(2, 3, gpu=1) @ ones(2, 3, gpu=1)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2**40, device="simgpu:1")
