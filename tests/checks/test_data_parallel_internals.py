"""Under the checks: what its probes count, and that right and wrong differ by what the checks look at."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from utils import simgpu
from utils.checks import Wrong, data_parallel_internals
from utils.checks.compare import how_far
from utils.checks.data_parallel_internals import forward_verdicts, forwards, losses, replicas
from utils.checks.data_parallel_internals.gpus import CLASSES, WIDTH, made_on, moved, plain_model, ways_to_share


def test_a_collective_counts_for_every_gpu_that_receives_or_sends():
    from torch.nn.parallel._functions import Broadcast

    simgpu.cluster(gpus_per_node=3)
    x = torch.ones(4, device="simgpu:0", requires_grad=True)
    with simgpu.profile() as ahead:
        copies = Broadcast.apply([0, 1, 2], x)
    with simgpu.profile() as back:
        sum(copy.sum().to("simgpu:0") for copy in copies).backward()
    assert moved(ahead) == {"GPU 0 → GPU 1": 16, "GPU 0 → GPU 2": 16}
    assert back.elapsed > 0
    returned = moved(back)
    assert {returned["GPU 1 → GPU 0"], returned["GPU 2 → GPU 0"]} == {16 + 4}  # gradients back, and the sums
    with simgpu.profile() as there:
        torch.ones(2).to("simgpu:2").cpu()
    assert moved(there) == {"host → GPU 2": 8, "GPU 2 → host": 8}


def test_the_small_model_has_what_is_easily_forgotten():
    model = replicas.small_model()
    names = dict(model.named_buffers())
    assert set(names) - set(model.state_dict()) == {"1.2.mask"}
    assert model[0].weight is model[2].weight
    assert any(name.count(".") > 1 for name, _ in model.named_parameters())
    assert any(isinstance(layer, nn.BatchNorm1d) for layer in model.modules())


def test_on_a_gpu_the_models_are_those_of_the_host():
    simgpu.cluster(gpus_per_node=2)
    for make in (replicas.small_model, plain_model):
        pairs = zip(make().parameters(), made_on(simgpu.device(0), make).parameters(), strict=True)
        assert all(torch.equal(here, there.cpu()) for here, there in pairs)


def test_both_ways_to_share_out_rows_are_known():
    for rows, gpus in data_parallel_internals.LOSSES:
        most = -(-rows // gpus)
        for sizes, parts in zip(
            ways_to_share(rows, gpus),
            (torch.zeros(rows).chunk(gpus), torch.zeros(rows).tensor_split(min(rows, gpus))),
            strict=True,
        ):
            assert sizes == [len(part) for part in parts]
            assert sum(sizes) == rows and max(sizes) == sizes[0] == most


def test_where_bytes_are_compared_both_ways_to_share_out_rows_move_the_same():
    for gpus, rows in data_parallel_internals.STEPS:
        full, even = ways_to_share(rows, gpus)
        assert full[0] == even[0]
        if rows >= gpus:
            assert len(full) == len(even) == gpus


def test_every_case_of_the_loss_can_show_a_wrong_weight_or_gathered_rows():
    uneven = [ways_to_share(rows, gpus)[0] for gpus, rows in data_parallel_internals.LOSSES]
    assert any(len(set(sizes)) > 1 for sizes in uneven)
    assert any(4 * min(sizes[1:]) > losses.MOST_GATHERED for sizes in uneven)


def _gathered(model, batch, targets, devices):
    return F.cross_entropy(nn.parallel.gather([model(batch)], devices[0]), targets)


def _in_replicas(model, batch, targets, devices):
    total = 0
    tensors = dict(model.named_parameters())
    copies = [{name: tensor.to(device) for name, tensor in tensors.items()} for device in devices]
    parts = zip(copies, batch.chunk(len(devices)), targets.chunk(len(devices)), devices, strict=True)
    for copy, rows, wanted, device in parts:
        logits = functional_call(model, copy, rows.to(device))
        total = total + F.cross_entropy(logits, wanted.to(device), reduction="sum").to(devices[0])
    return total / len(batch)


@pytest.fixture
def _library_stays(monkeypatch):
    """The probes refuse nn.DataParallel for the rest of their process; here that is not wanted."""
    monkeypatch.setattr(nn.DataParallel, "forward", nn.DataParallel.forward)
    monkeypatch.setattr(nn.parallel, "data_parallel", nn.parallel.data_parallel)


def test_the_stated_peak_lies_well_between_right_and_wrong(_library_stays):
    assert losses.peak_of_gpu_0(_in_replicas, 4) < 0.95 * losses.MOST_ON_GPU_0
    assert losses.peak_of_gpu_0(_gathered, 4) > 2 * losses.MOST_ON_GPU_0


def test_the_library_does_not_do_the_exercise(_library_stays):
    def forward(model, batch, devices):
        return nn.DataParallel(model, devices)(batch)

    with pytest.raises(Wrong, match="write its four steps yourself"):
        forwards.batches_seen(forward, 2)


def test_the_layer_that_watches_threads_leaves_one_thread_alone():
    model, x = plain_model(), torch.randn(3, WIDTH)
    torch.manual_seed(4)
    plain = nn.Sequential(nn.Linear(WIDTH, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, CLASSES))
    assert how_far(model(x), plain(x)) is None


def test_gpus_that_work_one_after_the_other_are_found():
    forward_verdicts.judge_together({0: (0.0, 1.0), 1: (0.9, 1.8)})
    with pytest.raises(Wrong, match="GPU 2 begins when GPU 0 has ended"):
        forward_verdicts.judge_together({0: (0.0, 1.0), 1: (0.5, 1.5), 2: (1.0, 2.0)})


def test_threads_that_share_a_module_are_found_and_others_are_not():
    import copy
    from concurrent.futures import ThreadPoolExecutor

    model, x = plain_model(), torch.randn(3, WIDTH)
    with ThreadPoolExecutor(2) as threads:
        for twin in (model, copy.deepcopy(model)):
            work = [threads.submit(layers, x) for layers in (model, twin)]
            failures = [one.exception() for one in work]
            assert any(isinstance(failure, Wrong) for failure in failures) == (twin is model)
            model = plain_model()  # one that no thread has been in
