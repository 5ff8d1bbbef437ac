"""The memory of simulated GPUs: counted to the byte, by kind, given back in time, and not without end."""

import gc
import threading

import pytest
import torch
from simgpu_support import MODELS, OPTIMIZERS, allocated, blocks, built, train
from torch import nn
from torch.utils.checkpoint import checkpoint

import simgpu
from simgpu.memory.allocator import KINDS, readable, rounded
from simgpu.memory.caching import CachingAllocator

MIB = 2**20


@pytest.fixture(autouse=True)
def _cluster():
    simgpu.cluster(gpus_per_node=3)
    torch.manual_seed(0)


def _kinds(prof, gpu=0):
    return {kind: nbytes for kind, nbytes in prof.memory_at_peak(gpu).items() if nbytes}


# --- Counting -----------------------------------------------------------------------------------------------


def test_every_storage_takes_whole_blocks_of_512_bytes():
    assert [rounded(n) for n in (0, 1, 512, 513, 1024)] == [0, 512, 512, 1024, 1024]
    for numbers, nbytes in ((1, 512), (128, 512), (129, 1024), (1000, 4096), (0, 0)):
        tensor = torch.zeros(numbers, device="simgpu:1")
        assert allocated() == [0, nbytes, 0]
        del tensor
    assert allocated() == [0, 0, 0]


def test_types_take_the_bytes_that_they_have():
    kept = []
    for dtype, size in ((torch.float64, 8), (torch.float32, 4), (torch.bfloat16, 2), (torch.int64, 8), (torch.bool, 1)):
        before = torch.simgpu.memory_allocated(1)
        kept.append(torch.zeros(1024, dtype=dtype, device="simgpu:1"))
        assert torch.simgpu.memory_allocated(1) - before == 1024 * size


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


def test_a_copy_to_another_gpu_takes_memory_there():
    x = torch.ones(1000, device="simgpu:1")
    y = x.to("simgpu:2")
    assert allocated() == [0, 4096, 4096]
    host = y.cpu()
    assert allocated() == [0, 4096, 4096]
    del x
    assert allocated() == [0, 0, 4096]
    back = host.to("simgpu:0")
    assert allocated() == [4096, 0, 4096]
    del y, back


def test_what_a_cycle_holds_is_free_after_the_garbage_collector():
    class Node:
        pass

    gc.collect()
    gc.disable()
    try:
        node = Node()
        node.itself, node.tensor = node, torch.ones(1000, device="simgpu:1")
        del node
        assert torch.simgpu.memory_allocated(1) == 4096
    finally:
        gc.enable()
    assert allocated() == [0, 0, 0]


@pytest.mark.parametrize("name", MODELS)
def test_training_leaves_nothing_behind(name):
    train(built(name), MODELS[name][1], steps=3, home="simgpu:1")
    assert allocated() == [0, 0, 0]


def test_memory_is_free_at_once_when_backward_has_returned():
    """Autograd's thread works beside the program: it must not hold anything any more."""
    for _ in range(200):
        a, b = (torch.ones(300, device="simgpu:1", requires_grad=True) for _ in range(2))
        y = (a * b).sin().clamp_max(3)
        gradients = torch.autograd.grad(y.sum(), (a, b))
        del a, b, y, gradients
        assert torch.simgpu.memory_allocated(1) == 0


def test_replaced_data_is_given_back():
    model = nn.Linear(100, 100, bias=False).to("simgpu:0")
    assert allocated()[0] == blocks(40_000)
    model.weight.data = torch.zeros(100, 100, device="simgpu:0")
    assert allocated()[0] == blocks(40_000)
    model.half()
    assert allocated()[0] == blocks(20_000)
    model.to("simgpu:1")
    assert allocated() == [0, blocks(20_000), 0]


def test_moving_a_model_peaks_at_one_parameter_more():
    model = nn.Sequential(*(nn.Linear(128, 128, bias=False) for _ in range(4))).to("simgpu:0")
    torch.simgpu.reset_peak_memory_stats(0)
    model.double()
    assert torch.simgpu.memory_allocated(0) == 8 * 65536
    assert torch.simgpu.max_memory_allocated(0) == 3 * 131072 + 65536 + 131072


# --- Hand-counted training ----------------------------------------------------------------------------------

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


def test_what_autocast_converts_for_backward_counts_as_activations():
    model = nn.Linear(INPUTS, OUTPUTS, bias=False).to("simgpu:0")
    batch = torch.ones(ROWS, INPUTS, device="simgpu:0")
    with simgpu.profile() as prof, torch.autocast("simgpu", dtype=torch.bfloat16):
        out = model(batch)
    assert prof.memory_series([0])[0].bytes_by_kind["activations"][-1] >= BATCH // 2 + OUT // 2
    del out
    assert torch.simgpu.memory_allocated(0) == WEIGHT + BATCH


# --- DataParallel -------------------------------------------------------------------------------------------


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


def test_gathering_makes_gpu_0_the_fullest():
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4096)).to("simgpu:0")
    with simgpu.profile() as prof:
        nn.DataParallel(model)(torch.ones(96, 16)).sum().backward()
    peaks = [prof.peak_memory(gpu) for gpu in range(3)]
    assert peaks[1] == peaks[2]
    assert peaks[0] - peaks[1] > 3 * (4 * 32 * 4096) - 4 * 32 * 4096, "the outputs of all"


# --- Too little ---------------------------------------------------------------------------------------------


def test_too_large_a_tensor_raises_what_cuda_raises_and_counts_nothing():
    simgpu.cluster(gpus_per_node=2, memory=8 * MIB)
    x = torch.ones(MIB, device="simgpu:1")  # 4 MiB
    with pytest.raises(
        torch.OutOfMemoryError,
        match=r"out of memory\. Tried to allocate 5\.00 MiB\. GPU 1 .* 8\.00 MiB of which 4\.00 MiB is free",
    ):
        torch.empty(5 * MIB, dtype=torch.uint8, device="simgpu:1")
    assert allocated() == [0, 4 * MIB]
    assert torch.simgpu.max_memory_allocated(1) == 4 * MIB
    assert torch.simgpu.mem_get_info(1) == (4 * MIB, 8 * MIB)
    y = x + 1  # fits exactly
    with pytest.raises(torch.OutOfMemoryError):
        y + 1
    del x, y
    assert allocated() == [0, 0]


def test_the_error_is_pytorchs_own():
    simgpu.cluster(gpus_per_node=1, memory=MIB)
    with pytest.raises(RuntimeError) as caught:
        torch.ones(MIB, device="simgpu:0")
    assert type(caught.value) is torch.OutOfMemoryError is torch.cuda.OutOfMemoryError


def test_sizes_are_written_as_cuda_writes_them():
    assert [readable(n) for n in (0, 512, 1536, 20 * MIB, 80 * 2**30)] == [
        *("0 bytes", "512 bytes", "1.50 KiB", "20.00 MiB", "80.00 GiB")
    ]


def _step(model, optimizer, rows):
    optimizer.zero_grad()
    loss = model(torch.ones(rows, 64, device="simgpu:0")).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def _where_it_fails(rows, memory):
    """Train with a batch that is too large, then with a small one: where it failed, and two losses."""
    simgpu.cluster(gpus_per_node=1, memory=memory)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64), nn.Tanh()) * 4, nn.Linear(64, 64)).to("simgpu:0")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    place = "nowhere"
    try:
        with simgpu.profile() as prof:
            _step(model, optimizer, rows)
    except torch.OutOfMemoryError:
        place = prof.events[-1].phase if prof.events else "forward"
    optimizer.zero_grad()
    gc.collect()
    losses = [_step(model, optimizer, 4) for _ in range(3)]
    del prof, optimizer, model
    assert allocated() == [0]
    return place, losses


def test_training_goes_on_with_a_smaller_batch_wherever_memory_ran_out():
    places = {}
    for rows in range(100, 3000, 150):
        place, losses = _where_it_fails(rows, MIB)
        places[place] = places.get(place, 0) + 1
        assert losses[-1] < losses[0]
    assert {"forward", "backward"} <= set(places), places


def test_an_optimizer_that_finds_no_memory_leaves_a_ledger_that_is_right():
    model = nn.Linear(256, 256, bias=False)  # 256 KiB
    simgpu.cluster(gpus_per_node=1, memory=3 * 2**18)
    model.to("simgpu:0")
    model.weight.grad = torch.ones(256, 256, device="simgpu:0")
    with pytest.raises(torch.OutOfMemoryError):
        torch.optim.Adam(model.parameters()).step()
    gc.collect()
    assert torch.simgpu.memory_allocated(0) == 2 * 2**18
    fresh = torch.ones(16, device="simgpu:0", requires_grad=True) * 2
    with simgpu.profile() as prof:
        held = prof.memory_at_peak(0)
    assert held["activations"] > 0, "the optimizer's step is over"
    del fresh


def test_when_one_replica_runs_out_of_memory_its_error_is_raised_and_the_next_batch_works():
    simgpu.cluster(gpus_per_node=3, memory=2 * MIB)
    model = nn.DataParallel(nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 8)).to("simgpu:0"))
    with pytest.raises(torch.OutOfMemoryError, match="GPU"):
        model(torch.ones(3000, 64))
    gc.collect()
    model(torch.ones(30, 64)).sum().backward()
    assert model.module[0].weight.grad.abs().sum() > 0


def test_each_gpu_has_its_own_memory():
    simgpu.cluster(gpus_per_node=2, gpu=[simgpu.gpu("H100").with_memory(MIB), "H100"])
    with pytest.raises(torch.OutOfMemoryError, match="GPU 0"):
        torch.ones(MIB, device="simgpu:0")
    assert torch.ones(MIB, device="simgpu:1").nbytes == 4 * MIB


def test_the_pictures_of_memory_say_what_was_counted():
    with simgpu.profile() as prof:
        x = torch.ones(MIB, device="simgpu:1")
    for at in ("time", "peak"):
        assert "GPU 1" in prof.memory(at=at).alt
    with pytest.raises(ValueError, match="at must be"):
        prof.memory(at="end")
    del x


@pytest.mark.parametrize("numbers", [True, False])
def test_resize_in_place_keeps_the_memory_of_a_smaller_shape_and_takes_more_for_a_larger_one(numbers):
    with simgpu.cluster(gpus_per_node=1, numbers=numbers):
        x = torch.ones(256, device="simgpu:0")
        view = x
        x.resize_(2, 64)
        assert (tuple(x.shape), allocated()) == ((2, 64), [1024])
        x.resize_(2, 1024).add_(1)
        assert view is x and x.stride() == (1024, 1)
        assert allocated() == [8192]
        if numbers:
            assert x[0, :128].tolist() == [2.0] * 128


# --- What the caching allocator keeps -----------------------------------------------------------------------


def test_the_caching_allocator_reserves_segments_and_cuts_them_into_blocks():
    allocator = CachingAllocator()
    allocator.take("a", 512, "main")
    allocator.take("b", 1024, "main")
    assert allocator.reserved == 2 * MIB  # one small segment for both
    allocator.take("c", 1024, "side")
    assert allocator.reserved == 4 * MIB  # another stream gets its own
    allocator.take("d", 3 * MIB, "main")
    allocator.take("e", 4 * MIB, "main")
    assert allocator.reserved == 24 * MIB  # below 10 MiB: cut from 20
    allocator.take("f", 11 * MIB + 512, "main")
    assert allocator.reserved == 24 * MIB  # it fits beside them: 13 MiB are left
    allocator.take("g", 11 * MIB + 512, "main")
    assert allocator.reserved == 36 * MIB  # a segment of its own, in whole 2 MiB
    for key in "de":
        allocator.give_back(key)
    allocator.take("h", 7 * MIB, "main")  # two neighbours have become one block
    assert allocator.reserved == allocator.peak == 36 * MIB


def test_what_is_free_in_another_stream_or_too_small_does_not_help():
    wholes, pieces = CachingAllocator(), CachingAllocator(expandable=True)
    for allocator in wholes, pieces:
        allocator.take("a", 40 * MIB, "main")
        allocator.give_back("a")
        allocator.take("b", 40 * MIB, "side")
        allocator.give_back("b")
        assert allocator.reserved == 80 * MIB
        allocator.take("c", 60 * MIB, "main")
    assert wholes.reserved == 140 * MIB
    assert pieces.reserved == 100 * MIB  # the stream's only segment has grown by what was missing


def test_a_profile_says_what_would_be_reserved():
    with simgpu.cluster(gpus_per_node=1, numbers=False) as cluster:
        before = torch.empty(2 * MIB, dtype=torch.uint8, device="simgpu:0")
        side = torch.simgpu.Stream()
        with simgpu.profile() as prof:
            x = torch.empty(30 * MIB, dtype=torch.uint8, device="simgpu:0")
            del x
            with torch.simgpu.stream(side):
                y = torch.empty(30 * MIB, dtype=torch.uint8, device="simgpu:0")
            y.untyped_storage().resize_(0)
            z = torch.empty(25 * MIB, dtype=torch.uint8, device="simgpu:0")
        assert prof.peak_memory(0) == 32 * MIB
        assert prof.peak_reserved(0) == (20 + 30 + 30) * MIB
        assert cluster.gpus[0].memory.allocated == before.nbytes + z.nbytes


@pytest.mark.parametrize(
    ("told", "waits", "reserved"), [(False, False, 30), (True, False, 60), (True, True, 30), ("its own", False, 30)]
)
def test_what_another_stream_uses_is_not_free_at_once(told, waits, reserved):
    """30 MiB, read and written in 63 µs by a stream beside the one that it was taken for; a launch takes 10 µs."""
    with simgpu.cluster(gpus_per_node=1, gpu="toy", numbers=False):
        side = torch.simgpu.Stream()
        with simgpu.profile() as prof:
            x = torch.empty(30 * MIB, dtype=torch.uint8, device="simgpu:0")
            with torch.simgpu.stream(side):
                x.add_(1)
            if told:
                x.record_stream(torch.simgpu.current_stream() if told == "its own" else side)
            del x  # at 10 µs; the stream beside is done at 73 µs
            for _ in range(7 if waits else 6):  # the last one is launched at 70, or 80
                torch.empty(1, device="simgpu:0").zero_()
            again = torch.empty(30 * MIB, dtype=torch.uint8, device="simgpu:0")
        assert prof.peak_memory(0) == 30 * MIB  # allocated are as many as ever
        assert prof.peak_reserved(0) == reserved * MIB + 2 * MIB  # and two for the small ones
        assert again.nbytes == 30 * MIB
