"""torch.nn.DataParallel on simulated GPUs: the real class, and the numbers of one device."""

import copy

import pytest
import torch
from simgpu_support import MODELS, OPTIMIZERS, SmallCNN, built
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import gather, parallel_apply, replicate, scatter
from torch.testing import assert_close

import simgpu

pytestmark = pytest.mark.numeric

DOUBLE = torch.float64
"""In float64, sums in another order differ by 1e-16 of their terms; a wrong factor or lost row, by more than 1e-10."""


@pytest.fixture(autouse=True)
def _cluster():
    simgpu.cluster(gpus_per_node=4)
    torch.manual_seed(0)


def close(found, expected):
    assert_close(found.detach().cpu(), expected.detach().cpu(), rtol=1e-10, atol=1e-12)


def network():
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 5)).to(DOUBLE)


def both(gpus, make=network):
    """A model on the CPU, and the same one in DataParallel over some GPUs."""
    model = make()
    return model, nn.DataParallel(copy.deepcopy(model).to("simgpu:0"), device_ids=list(range(gpus)))


@pytest.mark.parametrize("rows", [16, 7, 5, 1])
@pytest.mark.parametrize("gpus", [2, 3, 4])
def test_outputs_and_gradients_equal_those_of_one_device(gpus, rows):
    """Also with a last part that is smaller, and with fewer rows than GPUs."""
    model, parallel = both(gpus)
    batch = torch.randn(rows, 6, dtype=DOUBLE)
    labels = torch.arange(rows) % 5
    outputs = model(batch), parallel(batch.to("simgpu:0"))
    close(outputs[1], outputs[0])
    assert outputs[1].device == simgpu.device(0)
    cross_entropy(outputs[0], labels).backward()
    cross_entropy(outputs[1], labels.to("simgpu:0")).backward()
    for mine, theirs in zip(model.parameters(), parallel.parameters(), strict=True):
        assert theirs.grad.device == simgpu.device(0)
        close(theirs.grad, mine.grad)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_ten_steps_of_training_equal_those_of_one_device(optimizer):
    model, parallel = both(3)
    batch, labels = torch.randn(10, 6, dtype=DOUBLE), torch.arange(10) % 5
    algorithms = [OPTIMIZERS[optimizer](net.parameters()) for net in (model, parallel)]
    for _ in range(10):
        for net, algorithm, home in ((model, algorithms[0], "cpu"), (parallel, algorithms[1], "simgpu:0")):
            algorithm.zero_grad()
            cross_entropy(net(batch.to(home)), labels.to(home)).backward()
            algorithm.step()
    for mine, theirs in zip(model.parameters(), parallel.parameters(), strict=True):
        assert_close(theirs.detach().cpu(), mine.detach(), rtol=1e-7, atol=1e-9)  # Adam divides by small numbers


@pytest.mark.parametrize("name", ["embedding", "attention", "gpt tied", "gpt untied, dropout"])
def test_models_of_many_kinds_run_in_parallel(name):
    model, batch = built(name).to(DOUBLE).eval(), MODELS[name][1]
    batch = batch.to(DOUBLE) if batch.is_floating_point() else batch
    parallel = nn.DataParallel(copy.deepcopy(model).to("simgpu:0"))
    outputs = model(batch), parallel(batch)
    close(outputs[1], outputs[0])
    for out in outputs:
        out.square().sum().backward()
    for mine, theirs in zip(model.parameters(), parallel.parameters(), strict=True):
        close(theirs.grad, mine.grad)


def test_gradients_of_the_inputs_come_back():
    model, parallel = both(3)
    inputs = [torch.randn(7, 6, dtype=DOUBLE).requires_grad_()]
    inputs.append(inputs[0].detach().clone().requires_grad_())
    inputs.append(inputs[0].detach().to("simgpu:0").requires_grad_())
    for net, x in zip((model, parallel, parallel), inputs, strict=True):
        net(x).square().sum().backward()
    assert inputs[1].grad.device.type == "cpu"
    assert inputs[2].grad.device == simgpu.device(0)
    close(inputs[1].grad, inputs[0].grad)
    close(inputs[2].grad, inputs[0].grad)


class Everything(nn.Module):
    """Takes and returns nested things, and notes on which GPU it ran."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, dtype=DOUBLE))

    def forward(self, pair, options, *, scale, factor=1, flag=None):
        (a, (b,)) = pair
        assert a.device == b.device == options["x"].device == self.weight.device == scale.device
        assert (factor, flag) == (3, "on")
        out = (a + b) * self.weight + options["x"] * scale
        return {"out": out, "list": [out * factor, (options["x"],)], "rows": torch.tensor([len(a)], device=a.device)}


def test_nested_tuples_lists_dicts_and_keywords_are_split_and_put_together():
    model, parallel = both(3, Everything)
    a, b, x, scale = (torch.randn(7, 3, dtype=DOUBLE) for _ in range(4))
    results = [net((a, (b,)), {"x": x}, scale=scale, factor=3, flag="on") for net in (model, parallel)]
    close(results[1]["out"], results[0]["out"])
    close(results[1]["list"][0], results[0]["list"][0])
    close(results[1]["list"][1][0], x)
    assert results[1]["rows"].tolist() == [3, 3, 1], "seven rows over three GPUs"
    assert results[1]["list"][1][0].device == simgpu.device(0)


def test_inputs_from_the_cpu_and_from_a_gpu_are_split_alike():
    _, parallel = both(4)
    batch = torch.randn(8, 6, dtype=DOUBLE)
    with simgpu.profile() as from_host:
        first = parallel(batch)
    with simgpu.profile() as from_gpu:
        second = parallel(batch.to("simgpu:0"))
    assert torch.equal(first, second)
    assert [e.place for e in from_host.events if e.name == "copy from host"] == [f"host → GPU {i}" for i in range(4)]
    assert [e.place for e in from_gpu.events if e.name == "copy from host"] == ["host → GPU 0"]
    assert from_gpu.transferred(0, 2) == 2 * 6 * 8, "two rows of six"


def test_gpus_can_be_chosen_in_any_order():
    model = network()
    parallel = nn.DataParallel(copy.deepcopy(model).to("simgpu:2"), device_ids=[2, 0])
    batch = torch.randn(5, 6, dtype=DOUBLE)
    with simgpu.profile() as prof:
        out = parallel(batch)
    close(out, model(batch))
    assert out.device == simgpu.device(2)
    assert {e.gpus for e in prof.events if e.name == "addmm"} == {(0,), (2,)}


def test_every_replica_runs_on_its_own_gpu_in_its_own_thread():
    _, parallel = both(4)
    with simgpu.profile() as prof:
        parallel(torch.randn(8, 6, dtype=DOUBLE)).sum().backward()
    products = [e for e in prof.events if e.name == "addmm" and e.phase == "forward"]
    assert {e.gpus[0] for e in products} == {0, 1, 2, 3}
    assert len({e.host for e in products}) == 4
    assert {e.host for e in prof.events if e.phase == "backward"} >= {f"backward, GPU {i}" for i in range(4)}


def test_only_the_buffers_of_the_first_gpu_are_kept():
    model = SmallCNN().to(DOUBLE)
    parallel = nn.DataParallel(copy.deepcopy(model).to("simgpu:0"), device_ids=[0, 1])
    images = torch.randn(8, 3, 8, 8, dtype=DOUBLE)
    parallel(images)
    model(images[:4])  # the part of the first GPU
    close(parallel.module.norm.running_mean, model.norm.running_mean)
    close(parallel.module.norm.running_var, model.norm.running_var)
    assert parallel.module.norm.num_batches_tracked.item() == 1
    assert parallel.module.norm.running_mean.device == simgpu.device(0)


def test_autocast_and_no_grad_reach_the_threads():
    parallel = nn.DataParallel(nn.Linear(6, 5).to("simgpu:0"))
    with torch.autocast("simgpu", dtype=torch.float16):
        assert parallel(torch.randn(8, 6)).dtype is torch.float16
    with torch.autocast("simgpu", dtype=torch.bfloat16):
        # torch keeps the type for each thread, and parallel_apply passes on only that autocast is on: as on CUDA,
        # the threads compute in their default.
        assert parallel(torch.randn(8, 6)).dtype is torch.float16
    with torch.no_grad():
        assert not parallel(torch.randn(8, 6)).requires_grad
    assert parallel(torch.randn(8, 6)).dtype is torch.float32


def test_the_four_parts_can_be_called_one_by_one():
    model = network().to("simgpu:0")
    batch = torch.randn(8, 6, dtype=DOUBLE)
    inputs = scatter((batch,), [0, 1])
    assert [part[0].device.index for part in inputs] == [0, 1]
    replicas = replicate(model, [0, 1])
    assert [replica[0].weight.device.index for replica in replicas] == [0, 1]
    assert type(replicas[1][0].weight) is not nn.Parameter, "replicas share no leaves with the model"
    outputs = parallel_apply(replicas, inputs)
    out = gather(outputs, 0)
    assert out.device == simgpu.device(0)
    close(out, network_like(model)(batch))
    out.sum().backward()
    assert model[0].weight.grad is not None
    assert not replicas[1][0].weight.is_leaf, "its gradient goes back to the model"


def network_like(model):
    copied = copy.deepcopy(model)
    return copied.cpu()


def test_broadcast_and_reduce_happen_once_for_many_parameters():
    _, parallel = both(4)
    with simgpu.profile() as prof:
        parallel(torch.randn(8, 6, dtype=DOUBLE)).sum().backward()
    names = [e.name for e in prof.events if e.place == "collective"]
    assert names.count("broadcast") == 1, "small parameters travel in one buffer"
    assert names.count("reduce") >= 1


@pytest.mark.parametrize("home", ["cpu", "simgpu:1"])
def test_a_model_on_another_device_is_refused_in_torchs_words(home):
    parallel = nn.DataParallel(network().to(home), device_ids=[0, 1])
    with pytest.raises(
        RuntimeError, match=r"module must have its parameters and buffers on device simgpu:0 \(device_ids\[0\]\)"
    ):
        parallel(torch.randn(4, 6, dtype=DOUBLE))


def test_an_error_in_one_replica_names_it_and_the_next_batch_works():
    class Picky(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 5).to(DOUBLE)

        def forward(self, x):
            if x.abs().max() > 100:
                raise KeyError("too large")
            return self.layer(x)

    _, parallel = both(4, Picky)
    batch = torch.randn(8, 6, dtype=DOUBLE)
    batch[5] = 1000
    with pytest.raises(KeyError, match=r"Caught KeyError in replica 2 on device 2(.|\n)*too large"):
        parallel(batch)
    with simgpu.profile() as prof:
        parallel(torch.randn(8, 6, dtype=DOUBLE)).sum().backward()
    with simgpu.profile() as again:
        parallel.zero_grad()
        parallel(torch.randn(8, 6, dtype=DOUBLE)).sum().backward()
    assert prof.elapsed == pytest.approx(again.elapsed, rel=0.01)
    assert parallel.module.layer.weight.grad is not None
