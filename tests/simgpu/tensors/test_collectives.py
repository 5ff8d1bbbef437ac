"""Collectives over simulated GPUs: results, costs by the formulas of links.py, overlap, and up to 1,024 GPUs."""

import time

import pytest
import torch
from simgpu_support import MM, allocated, elapsed, exactly, happened

import simgpu
from simgpu.hardware import TOY
from simgpu.time import nccl
from utils.hardware import links
from utils.hardware.links import ETHERNET_25, INFINIBAND_NDR

pytestmark = pytest.mark.numeric

NBYTES = 4 * 1200 * 1000


def cluster(nodes=1, gpus_per_node=4, **options):
    """Toy GPUs, and a host that needs no time."""
    return simgpu.cluster(nodes, gpus_per_node, "toy", **{"launch_s": 0, "network": ETHERNET_25} | options)


def one_each(gpus, shape=(1200, 1000), dtype=torch.float32):
    """GPU i holds the number i + 1 everywhere."""
    tensors = []
    for gpu in range(gpus):
        with simgpu.on(gpu):
            tensors.append(torch.full(shape, gpu + 1, dtype=dtype, device="simgpu"))
    return tensors


@pytest.mark.parametrize(("op", "value"), [("sum", 10.0), ("mean", 2.5), ("max", 4.0)])
def test_all_reduce_gives_every_gpu_the_same_in_place(op, value):
    cluster()
    tensors = one_each(4, (3, 5))
    kept = list(tensors)
    simgpu.all_reduce(tensors, op)
    for gpu, tensor in enumerate(tensors):
        assert tensor is kept[gpu]
        assert tensor.device == simgpu.device(gpu)
        assert tensor.tolist() == [[value] * 5] * 3


def test_reduce_scatter_gives_each_gpu_its_rows_and_all_gather_puts_them_together():
    cluster()
    tensors = [torch.arange(8.0, device=f"simgpu:{gpu}").view(8, 1) * (gpu + 1) for gpu in range(4)]
    parts = simgpu.reduce_scatter(tensors)
    assert [part.flatten().tolist() for part in parts] == [[0, 10], [20, 30], [40, 50], [60, 70]]
    assert [part.device.index for part in parts] == [0, 1, 2, 3]
    wholes = simgpu.all_gather(parts)
    simgpu.all_reduce(tensors)
    assert all(torch.equal(whole, tensor) for whole, tensor in zip(wholes, tensors, strict=True))
    assert simgpu.reduce_scatter(one_each(4, (4, 1)), "mean")[2].tolist() == [[2.5]]


def test_broadcast_copies_one_gpus_tensor_to_all():
    cluster()
    tensors = one_each(4, (2,))
    simgpu.broadcast(tensors, source=2)
    assert [tensor.tolist() for tensor in tensors] == [[3.0, 3.0]] * 4


def test_some_of_the_gpus_can_take_part_in_any_order():
    cluster()
    tensors = one_each(4, (2,))
    simgpu.all_reduce([tensors[3], tensors[1]])
    assert [tensor[0].item() for tensor in tensors] == [1, 6, 3, 6]
    gathered = simgpu.all_gather([tensors[2], tensors[0]])
    assert [(t.device.index, t.tolist()) for t in gathered] == [(2, [3, 3, 1, 1]), (0, [3, 3, 1, 1])]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_inside_a_node_costs_follow_the_formulas(ranks):
    cluster()
    tensors = one_each(ranks)
    ring = links.ring_all_reduce(NBYTES, ranks, TOY.nvlink)
    assert elapsed(lambda: simgpu.all_reduce(tensors)) == exactly(ring)
    assert elapsed(lambda: simgpu.reduce_scatter(tensors)) == exactly(ring / 2)
    parts = simgpu.reduce_scatter(tensors)
    assert elapsed(lambda: simgpu.all_gather(parts)) == exactly(ring / 2), "n is the size of the whole"
    chain = (ranks - 1) * TOY.nvlink.alpha_s + NBYTES * TOY.nvlink.beta_s_per_byte
    assert elapsed(lambda: simgpu.broadcast(tensors)) == exactly(chain)


@pytest.mark.parametrize("nics", [None, 1, 2])
def test_over_several_nodes_costs_follow_the_formulas(nics):
    cluster(2, 4, nics_per_node=nics)
    tensors = one_each(8)
    network = ETHERNET_25.for_collectives()
    expected = links.hierarchical_all_reduce(NBYTES, 2, 4, TOY.nvlink, network, nics or 4)
    assert elapsed(lambda: simgpu.all_reduce(tensors)) == exactly(expected)


def test_nodes_with_one_gpu_each_talk_over_the_network_only():
    cluster(4, 1)
    tensors = one_each(4)
    network = ETHERNET_25.for_collectives()
    assert elapsed(lambda: simgpu.all_reduce(tensors)) == exactly(links.ring_all_reduce(NBYTES, 4, network))


def test_gpus_of_one_node_of_several_do_not_use_the_network():
    cluster(2, 4)
    tensors = one_each(8)
    ring = links.ring_all_reduce(NBYTES, 4, TOY.nvlink)
    assert elapsed(lambda: simgpu.all_reduce(tensors[:4])) == exactly(ring)
    assert elapsed(lambda: (simgpu.all_reduce(tensors[:4]), simgpu.all_reduce(tensors[4:]))) == exactly(ring), "apart"


def test_the_launch_of_a_collective_costs_one_launch():
    cluster(launch_s=1e-5)
    tensors = one_each(4)
    with simgpu.profile() as prof:
        simgpu.all_reduce(tensors)
    (event,) = prof.events
    assert prof.elapsed == exactly(1e-5 + links.ring_all_reduce(NBYTES, 4, TOY.nvlink))
    assert (event.name, event.place, event.gpus, event.nbytes) == ("all-reduce", "collective", (0, 1, 2, 3), NBYTES)
    assert prof.transferred() == 0, "that counts copies only"


def test_a_collective_waits_for_what_it_reads_and_is_waited_for():
    cluster()
    tensors = [torch.ones(1000, 1000, device=f"simgpu:{gpu}") for gpu in range(4)]
    ring = links.ring_all_reduce(4e6, 4, TOY.nvlink)

    def program():
        products = [tensor @ tensor for tensor in tensors]
        simgpu.all_reduce(products)
        return [product @ product for product in products]

    assert elapsed(program) == exactly(MM + ring + MM)


def test_an_asynchronous_collective_overlaps_with_computing():
    cluster()
    tensors = one_each(4)
    other = torch.ones(1000, 1000, device="simgpu:1")
    ring = links.ring_all_reduce(NBYTES, 4, TOY.nvlink)

    def program(async_op, products=3):
        handle = simgpu.all_reduce(tensors, async_op=async_op)
        for _ in range(products):
            other @ other
        handle.wait()
        tensors[1] @ other

    assert elapsed(lambda: program(False)) == exactly(ring + 3 * MM + 1.2 * MM)
    assert elapsed(lambda: program(True)) == exactly(max(ring, 3 * MM) + 1.2 * MM)
    assert elapsed(lambda: program(True, 20)) == exactly(20 * MM + 1.2 * MM)


def test_what_an_asynchronous_collective_writes_is_not_read_before():
    cluster()
    tensors = one_each(4)
    ring = links.ring_all_reduce(NBYTES, 4, TOY.nvlink)
    with simgpu.profile() as prof:
        simgpu.all_reduce(tensors, async_op=True)
        tensors[0] + 1
    assert prof.elapsed == exactly(ring + 2 * NBYTES / 1e12)


def test_collectives_run_one_after_the_other():
    cluster()
    first, second = one_each(4), one_each(4)
    ring = links.ring_all_reduce(NBYTES, 4, TOY.nvlink)
    assert elapsed(lambda: [simgpu.all_reduce(t, async_op=True) for t in (first, second)]) == exactly(2 * ring)


def test_a_thousand_gpus_reduce_together():
    begin = time.perf_counter()
    big = simgpu.cluster(nodes=128, gpus_per_node=8, gpu="H100", launch_s=0)
    tensors = one_each(1024, (16,))
    with simgpu.profile() as prof:
        simgpu.all_reduce(tensors)
    assert tensors[0].tolist() == tensors[1023].tolist() == [1024 * 1025 / 2] * 16
    assert tensors[1023].gpu == 1023
    inside, network = big.inside.for_collectives(), INFINIBAND_NDR.for_collectives()
    choice = nccl.choose("all-reduce", 64, 128, 8, inside, network, 8)
    assert (choice.algorithm, choice.protocol) == ("tree", "LL"), "a small message over many nodes"
    assert prof.elapsed == exactly(choice.seconds)
    assert "128 nodes × 8 H100" in repr(big)
    assert time.perf_counter() - begin < 30, "a loose limit, for slow machines: usually below a second"


def test_gpus_without_a_name_are_reached_with_on():
    simgpu.cluster(nodes=128, gpus_per_node=8)
    with simgpu.on(1000):
        x = torch.ones(100, device="simgpu", requires_grad=True)
        weight = torch.nn.Linear(100, 2).to("simgpu")
        loss = weight(x + 1).sum()
        loss.backward()
        assert torch.simgpu.current_device() == 1000
        assert torch.simgpu.memory_allocated() > 0
    assert (x.gpu, x.get_device(), str(x.device)) == (1000, 1000, "simgpu")
    assert weight.weight.grad.gpu == x.grad.gpu == 1000
    assert x.cpu().tolist() == [1.0] * 100
    assert x.to("simgpu:3").device == simgpu.device(3)
    with simgpu.on(999), pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(100, device="simgpu")
    assert allocated()[0] == 0
    with pytest.raises(RuntimeError, match="names for GPUs 0 to 127"):
        torch.ones(1, device="simgpu:200")


def test_collectives_take_the_same_time_with_shapes_alone_and_every_time():
    def program(numbers):
        cluster(2, 4, numbers=numbers, launch_s=1e-5)
        tensors = one_each(8, (16, 4))
        with simgpu.profile() as prof:
            parts = simgpu.reduce_scatter(tensors)
            wholes = simgpu.all_gather(parts, async_op=True)
            simgpu.broadcast(wholes, source=3)
        return happened(prof), [prof.peak_memory(gpu) for gpu in range(8)]

    assert program(True) == program(True) == program(False)


def test_what_cannot_be_reduced_is_refused_in_words():
    cluster()
    a, b = one_each(2, (4, 3))
    with pytest.raises(ValueError, match=r"all_reduce needs equal shapes .* GPU 0 has \(4, 3\) .* GPU 1 has \(2, 3\)"):
        simgpu.all_reduce([a, b[:2]])
    with pytest.raises(ValueError, match=r"all_gather needs equal shapes and types .*float32 .*float64"):
        simgpu.all_gather([a, b.double()])
    with pytest.raises(ValueError, match="rows that divide by 2, not 3"):
        simgpu.reduce_scatter([a[:3], b[:3]])
    with pytest.raises(ValueError, match="GPU 0 has several"):
        simgpu.all_reduce([a, b, a + 1])
    for nothing in ([], [torch.ones(3)], [a, torch.ones(4, 3)]):
        with pytest.raises(ValueError, match="one tensor for each simulated GPU"):
            simgpu.all_reduce(nothing)
    with pytest.raises(ValueError, match='op must be "sum", "mean" or "max", not \'min\''):
        simgpu.all_reduce([a, b], op="min")


def test_autograd_notices_a_collective_that_changes_what_backward_needs():
    """As with torch.distributed: the change in place raises the version, so a stale value is not used silently."""
    cluster()
    x = [torch.full((3,), 2.0, device=f"simgpu:{gpu}", requires_grad=True) for gpu in range(2)]
    squares = [t.exp() for t in x]
    before = squares[0]._version
    simgpu.all_reduce([square.detach() for square in squares])
    assert squares[0]._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squares[0].sum().backward()
