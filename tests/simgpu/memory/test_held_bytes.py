"""The memory of simulated GPUs: counted to the byte, by kind, and given back in time."""

import threading

import pytest
import torch
from simgpu_support import MODELS, OPTIMIZERS, allocated, built, train
from torch import nn
from torch.utils.checkpoint import checkpoint

import simgpu
from simgpu.memory.allocator import KINDS, rounded


@pytest.fixture(autouse=True)
def _cluster():
    simgpu.cluster(gpus_per_node=3)
    torch.manual_seed(0)


def _kinds(prof, gpu=0):
    return {kind: nbytes for kind, nbytes in prof.memory_at_peak(gpu).items() if nbytes}


def test_every_storage_takes_whole_blocks_of_512_bytes():
    assert [rounded(n) for n in (0, 1, 512, 513, 1024)] == [0, 512, 512, 1024, 1024]
    for numbers, nbytes in ((1, 512), (128, 512), (129, 1024), (1000, 4096), (0, 0)):
        tensor = torch.zeros(numbers, device="simgpu:1")
        assert allocated() == [0, nbytes, 0]
        del tensor
    assert allocated() == [0, 0, 0]


def test_a_view_holds_no_memory_but_keeps_its_storage_alive():
    whole = torch.zeros(1000, device="simgpu:1")
    views = [whole[:10], whole.view(10, 100).t(), whole.expand(5, 1000), whole.detach(), whole.data, whole.split(100)]
    assert allocated() == [0, 4096, 0]
    del whole, views[1:]
    assert allocated() == [0, 4096, 0], "ten numbers keep a thousand alive"
    del views
    assert allocated() == [0, 0, 0]


def test_working_in_place_adds_nothing():
    x = torch.ones(1000, device="simgpu:1")
    torch.simgpu.reset_peak_memory_stats(1)
    x.add_(1).mul_(2).clamp_(max=3).relu_()
    x[3] = 1.0
    x[5:7] = x[8:10]
    x += 2
    torch.add(x, x, out=x)
    assert torch.simgpu.max_memory_allocated(1) == 4096
    x = x + 1
    assert torch.simgpu.max_memory_allocated(1) == 2 * 4096
    assert torch.simgpu.memory_allocated(1) == 4096


@pytest.mark.parametrize("name", MODELS)
def test_training_leaves_nothing_behind(name):
    train(built(name), MODELS[name][1], steps=3, home="simgpu:1")
    assert allocated() == [0, 0, 0]


def test_memory_is_free_at_once_when_backward_has_returned():
    """Autograd's thread works beside the program: it must not hold anything any more."""
    for _ in range(50):
        a, b = (torch.ones(300, device="simgpu:1", requires_grad=True) for _ in range(2))
        y = (a * b).sin().clamp_max(3)
        gradients = torch.autograd.grad(y.sum(), (a, b))
        del a, b, y, gradients
        assert torch.simgpu.memory_allocated(1) == 0


def test_moving_a_model_peaks_at_one_parameter_more():
    model = nn.Sequential(*(nn.Linear(128, 128, bias=False) for _ in range(4))).to("simgpu:0")
    torch.simgpu.reset_peak_memory_stats(0)
    model.double()
    assert torch.simgpu.memory_allocated(0) == 8 * 65536
    assert torch.simgpu.max_memory_allocated(0) == 3 * 131072 + 65536 + 131072


ROWS, INPUTS, OUTPUTS = 32, 256, 128

WEIGHT, BIAS, BATCH, OUT = 4 * INPUTS * OUTPUTS, 4 * OUTPUTS, 4 * ROWS * INPUTS, 4 * ROWS * OUTPUTS

SCALAR = 512  # what a single number takes


def test_forward_and_backward_of_one_layer_counted_by_hand():
    model = nn.Linear(INPUTS, OUTPUTS).to("simgpu:0")
    batch = torch.ones(ROWS, INPUTS, device="simgpu:0")
    with simgpu.profile() as prof:
        out = model(batch)
        assert torch.simgpu.memory_allocated(0) == WEIGHT + BIAS + BATCH + OUT
        loss = out.sum()
        assert torch.simgpu.memory_allocated(0) == WEIGHT + BIAS + BATCH + OUT + SCALAR
        loss.backward()
        # The gradient of the loss (1) is spread over the outputs by a view. What stays: one gradient a parameter.
        assert torch.simgpu.memory_allocated(0) == 2 * (WEIGHT + BIAS) + BATCH + OUT + SCALAR
    assert prof.peak_memory(0) == 2 * (WEIGHT + BIAS) + BATCH + OUT + 2 * SCALAR, (
        "the last one is the gradient of the loss"
    )
    assert torch.simgpu.max_memory_allocated(0) == prof.peak_memory(0)
    assert prof.peak_memory(1) == 0


def test_activations_of_a_chain_are_counted_by_hand():
    x = torch.ones(1024, device="simgpu:0", requires_grad=True)  # 4096 bytes
    with simgpu.profile() as prof:
        y = x
        for _ in range(5):
            y = y.sin()  # each keeps its input for backward
        assert torch.simgpu.memory_allocated(0) == 6 * 4096
        y.sum().backward()
    # Backward frees what a function kept once it is done. At first: 6 tensors, the sum's 1 and its gradient, and for
    # the last sin its cosine and the product. (The tensor y itself is held by the program to the end.)
    assert prof.peak_memory(0) == 6 * 4096 + 2 * SCALAR + 2 * 4096
    with torch.no_grad():
        torch.simgpu.reset_peak_memory_stats(0)
        before = torch.simgpu.memory_allocated(0)
        z = x
        for _ in range(5):
            z = z.sin()
    assert torch.simgpu.max_memory_allocated(0) - before == 2 * 4096, (
        "without backward only input and output are needed"
    )


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_keeps_the_inputs_only(use_reentrant):
    def five(x):
        for _ in range(5):
            x = x.sin()
        return x

    x = torch.ones(1024, device="simgpu:0", requires_grad=True)
    kept = five(five(x))
    assert torch.simgpu.memory_allocated(0) == 11 * 4096
    del kept
    again = checkpoint(five, checkpoint(five, x, use_reentrant=use_reentrant), use_reentrant=use_reentrant)
    assert torch.simgpu.memory_allocated(0) == 3 * 4096, "x, and what each part returned"
    again.sum().backward()
    assert torch.simgpu.memory_allocated(0) == 2 * 4096 + 4096, "x, its gradient, and the result"


@pytest.mark.parametrize(("optimizer", "copies"), [("SGD", 1), ("Adam", 2), ("AdamW", 2)])
def test_the_state_of_an_optimizer_counted_by_hand(optimizer, copies):
    model = nn.Linear(INPUTS, OUTPUTS).to("simgpu:1")
    algorithm = OPTIMIZERS[optimizer](model.parameters())
    model(torch.ones(ROWS, INPUTS, device="simgpu:1")).sum().backward()
    before = torch.simgpu.memory_allocated(1)
    with simgpu.profile() as prof:
        algorithm.step()
        assert torch.simgpu.memory_allocated(1) - before == copies * (WEIGHT + BIAS)
    kinds = prof.memory_series([1])[0].bytes_by_kind
    assert kinds["optimizer state"][-1] == copies * (WEIGHT + BIAS)
    assert kinds["parameters"][-1] == kinds["gradients"][-1] == WEIGHT + BIAS
    assert kinds["activations"][-1] == 0
    algorithm.zero_grad()
    assert torch.simgpu.memory_allocated(1) == before + (copies - 1) * (WEIGHT + BIAS)
    assert model(torch.ones(ROWS, INPUTS, device="simgpu:1")).sum().isfinite()


def test_gradient_accumulation_adds_nothing():
    model = nn.Linear(INPUTS, OUTPUTS).to("simgpu:0")
    batch = torch.ones(ROWS, INPUTS, device="simgpu:0")
    peaks, ends = [], []
    for _ in range(4):
        with simgpu.profile() as prof:
            model(batch).sum().backward()
        peaks.append(prof.peak_memory(0))
        ends.append(torch.simgpu.memory_allocated(0))
    assert len(set(ends)) == 1, "one gradient, however often it is added to"
    # From the second time on, the old gradient is there while the new one is computed.
    assert peaks[1:] == [peaks[1]] * 3
    assert peaks[1] - peaks[0] == WEIGHT + BIAS


def test_kinds_of_memory_are_told_apart():
    with simgpu.profile() as prof:
        model = nn.Linear(INPUTS, OUTPUTS).to("simgpu:0")
        optimizer = torch.optim.Adam(model.parameters())
        batch = torch.ones(ROWS, INPUTS).to("simgpu:0")
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(batch).sin().sum()
            held = dict(zip(KINDS, (prof.memory_series([0])[0].bytes_by_kind[kind][-1] for kind in KINDS), strict=True))
            loss.backward()
            optimizer.step()
    assert held["parameters"] == WEIGHT + BIAS
    assert held["optimizer state"] == 2 * (WEIGHT + BIAS)
    assert held["activations"] == OUT + SCALAR, (
        "what sin needs for backward, and the loss. (The result of sin is gone.)"
    )
    assert held["gradients"] == 0
    assert held["other"] == BATCH
    assert set(_kinds(prof)) <= set(KINDS)
    assert sum(_kinds(prof).values()) == prof.peak_memory(0)


def test_replicas_and_gathered_outputs_counted_by_hand():
    model = nn.Linear(INPUTS, OUTPUTS).to("simgpu:0")
    parallel = nn.DataParallel(model)
    batch = torch.ones(3 * ROWS, INPUTS, device="simgpu:0")
    with torch.no_grad():
        out = parallel(batch)
    assert allocated() == [WEIGHT + BIAS + 3 * (BATCH + OUT), 0, 0], "replicas live for one call"
    assert out.device == simgpu.device(0)
    del out
    with simgpu.profile() as prof:
        out = parallel(batch)
        held = [torch.simgpu.memory_allocated(gpu) for gpu in range(3)]
    # GPU 0: the model, the batch (its own part is a view), its own output, and all outputs together.
    # The others: their part of the batch, for the weight's gradient. (Backward does not need the weight here, so the
    # replicas are gone, and the outputs have been sent away.)
    assert held == [WEIGHT + BIAS + 3 * (BATCH + OUT), BATCH, BATCH]
    # GPU 0 is fullest when the parameters are sent: they travel in one flat buffer.
    assert prof.peak_memory(0) == 2 * (WEIGHT + BIAS) + 3 * BATCH
    assert prof.peak_memory(1) == prof.peak_memory(2) == WEIGHT + BIAS + BATCH + OUT
    out.sum().backward()
    del out, parallel
    assert allocated() == [2 * (WEIGHT + BIAS) + 3 * BATCH, 0, 0]


def test_the_gradients_of_data_parallel_are_on_gpu_0_and_count_as_gradients():
    model = nn.Linear(INPUTS, OUTPUTS).to("simgpu:0")
    parallel = nn.DataParallel(model)
    with simgpu.profile() as prof:
        parallel(torch.ones(3 * ROWS, INPUTS)).sum().backward()
    held = [{kind: values[-1] for kind, values in series.bytes_by_kind.items()} for series in prof.memory_series()]
    assert (held[0]["parameters"], held[0]["gradients"]) == (WEIGHT + BIAS, WEIGHT + BIAS)
    assert [sum(each.values()) for each in held] == [2 * (WEIGHT + BIAS), 0, 0]
    assert max(prof.memory_series([1])[0].bytes_by_kind["parameters"]) == WEIGHT + BIAS, "a replica, for a while"
    # At the peak the replica is gone; there are its gradients, and their copy in the flat buffer that is sent.
    peak = {kind: nbytes for kind, nbytes in prof.memory_at_peak(1).items() if nbytes}
    assert peak == {"gradients": WEIGHT + BIAS, "other": WEIGHT + BIAS}


def test_memory_freed_by_another_thread_is_given_back():
    kept = [torch.ones(1000, device="simgpu:1")]
    with simgpu.profile() as prof:
        thread = threading.Thread(target=kept.clear)
        thread.start()
        thread.join()
    assert allocated() == [0, 0, 0]
    assert prof.memory_series([1])[0].bytes_by_kind["other"][-1] == 0
    assert prof.elapsed == 0
