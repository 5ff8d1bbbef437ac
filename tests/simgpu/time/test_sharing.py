"""Kernels beside a collective of NCCL are slower: it takes multiprocessors and memory bandwidth of the GPU."""

import contextlib

import pytest
import torch
import torch.distributed as dist
from simgpu_ranks import join
from torch import nn
from torch.distributed.fsdp import fully_shard

import simgpu
from simgpu.hardware import H100
from simgpu.time import nccl
from simgpu.time.work import Kernel, Share
from utils.hardware.links import INFINIBAND_NDR, NVLINK3, NVLINK4
from utils.ranks import World

MULTIPROCESSORS = 132

LARGE = 2**28


def alone_and_beside(kernel, collective="all_reduce", **options):
    """The kernel and the collective by themselves, then together: their events."""
    with simgpu.one_of(8, "H100", launch_s=0.0, **options) as cluster, torch.device("simgpu", cluster.local_rank):
        tensor = torch.zeros(LARGE, dtype=torch.bfloat16)
        gathered = torch.zeros(8 * LARGE, dtype=torch.bfloat16)
        x = torch.zeros(9216, 9216, dtype=torch.bfloat16)

        def send():
            if collective == "all_reduce":
                return dist.all_reduce(tensor, async_op=True)
            return dist.all_gather_into_tensor(gathered, tensor, async_op=True)

        with simgpu.profile() as apart:
            kernel(x)
            torch.simgpu.synchronize()
            send().wait()
        with simgpu.profile() as together:
            work = send()
            kernel(x)
            work.wait()
    (alone,) = [event for event in apart.events if event.phase != "communication"]
    (beside,) = [event for event in together.events if event.phase != "communication"]
    (sent,) = [event for event in together.events if event.phase == "communication"]
    return alone, beside, sent


def test_a_product_goes_without_the_multiprocessors_of_the_channels():
    alone, beside, sent = alone_and_beside(lambda x: x @ x)
    assert sent.how == "switch Simple"  # 16 channels; the product begins with it, and is longer
    products = alone.seconds - H100.kernel_s
    slowed = H100.kernel_s + products / (1 - 16 / MULTIPROCESSORS)
    done = sent.seconds / slowed
    assert 0.5 < done < 1
    assert beside.seconds == pytest.approx(sent.seconds + (1 - done) * alone.seconds, rel=1e-9)


def test_a_kernel_that_memory_limits_goes_without_the_traffics_bandwidth():
    alone, beside, sent = alone_and_beside(lambda x: x + 1, "all_gather")
    assert sent.how == "ring Simple"
    traffic = 2 * 7 * LARGE * 2  # seven parts sent, and seven received, two bytes each number
    taken = traffic / sent.seconds / (H100.memory_bytes_per_s * H100.achievable_bandwidth)
    assert 0.2 < taken < 0.3
    assert beside.end < sent.end
    assert beside.seconds - H100.kernel_s == pytest.approx((alone.seconds - H100.kernel_s) / (1 - taken), rel=1e-9)


def test_sharing_can_be_switched_off():
    alone, beside, _ = alone_and_beside(lambda x: x @ x, sharing=False)
    assert beside.seconds == pytest.approx(alone.seconds, rel=1e-12)


def kernels_and_a_collective(first):
    """Kernels of two streams beside a collective, which the host launches first or last: names, starts and ends."""
    with simgpu.one_of(8, "H100", launch_s=0.0) as cluster, torch.device("simgpu", cluster.local_rank):
        tensor = torch.zeros(LARGE, dtype=torch.bfloat16)
        x = torch.zeros(4096, 4096, dtype=torch.bfloat16)
        gathering, other = simgpu.Stream(), simgpu.Stream()
        with simgpu.profile() as prof:
            if first:
                with gathering:
                    work = dist.all_reduce(tensor, async_op=True)
            for _ in range(4):
                x @ x
            with other:
                y = x + 1
            torch.simgpu.current_stream().wait_stream(other)
            y * 2
            for _ in range(4):
                x @ x
            if not first:
                with gathering:
                    work = dist.all_reduce(tensor, async_op=True)
            work.wait()
            x @ x
    events = [event for event in prof.events if event.phase != "communication"]
    return [(event.name, round(event.start * 1e9, 3), round(event.end * 1e9, 3)) for event in events]


def test_it_does_not_matter_whether_the_host_has_launched_the_kernels_before_the_collective():
    """As in FSDP2, whose gathering stream does not wait for what computes."""
    found = kernels_and_a_collective(first=False)
    assert found == kernels_and_a_collective(first=True)
    products = [end - start for name, start, end in found if name == "mm"]
    assert len(products) == 9
    assert products[0] == pytest.approx(products[3])
    assert products[0] > 1.1 * products[8]


def test_one_process_with_several_gpus_shares_them_too_and_the_toy_gives_nothing_away():
    found = {}
    for kind in ("H100", "toy"):
        with simgpu.cluster(gpus_per_node=4, gpu=kind, numbers=False, launch_s=0.0):
            parts = [torch.zeros(LARGE // 4, device=f"simgpu:{i}") for i in range(4)]
            x = torch.zeros(2048, 2048, device="simgpu:2")
            with simgpu.profile() as prof:
                x @ x
                torch.simgpu.synchronize(2)
                work = simgpu.all_reduce(parts, async_op=True)
                x @ x
                work.wait()
            first, second = [event.seconds for event in prof.events if event.name == "mm"]
            found[kind] = (second - 2e-6) / (first - 2e-6)
    assert found["H100"] == pytest.approx(1 / (1 - 24 / MULTIPROCESSORS), rel=1e-6)
    assert found["toy"] == 1


def test_channels_of_nccl():
    def channels(algorithm="ring", nbytes=2**30, nodes=1, inside=NVLINK4, cards=8):
        return nccl.channels(algorithm, nbytes, nodes, inside, INFINIBAND_NDR, cards)

    assert [channels(), channels(inside=NVLINK3), channels("switch")] == [24, 24, 16]
    assert [channels(nodes=2), channels(nodes=2, cards=1)] == [16, 2]  # two for each card
    assert [channels(nbytes=4), channels(nbytes=100_000), channels(nbytes=0)] == [1, 4, 0]  # 32 KiB each


def test_several_collectives_at_once_never_take_all():
    kernel = Kernel(0.0, 1.0, 0.5)
    assert kernel.beside([Share(0.25, 0.6)]) == pytest.approx(4 / 3)
    assert kernel.beside([Share(0.1, 0.6)]) == pytest.approx(0.5 / 0.4)  # now memory is what it waits for
    assert kernel.beside([Share(0.8, 0), Share(0.8, 0)]) == pytest.approx(10)


def sharded_step(sharing):
    device = join(numbers=False, sharing=sharing)
    with device:
        net = nn.Sequential(*[nn.Linear(4096, 4096, bias=False) for _ in range(6)])
        x = torch.zeros(16_384, 4096)
    for layer in net:
        fully_shard(layer)
    fully_shard(net)
    with simgpu.profile() as prof:
        net(x).sum().backward()
    return prof.elapsed, sum(event.seconds for event in prof.events if event.name == "mm")


def test_ranks_agree_and_a_sharded_step_takes_longer():
    with World(2, backend="gloo", timeout=120) as world:
        shared, free = [world.run(sharded_step, sharing) for sharing in (True, False)]
    assert len(set(shared)) == len(set(free)) == 1
    (elapsed, products), (before, products_before) = shared[0], free[0]
    assert products_before < products < products_before / (1 - 24 / MULTIPROCESSORS)
    assert elapsed - before == pytest.approx(products - products_before, rel=0.5)


def product_and_collective(order, chunks=None, network="InfiniBand NDR", nodes=1):
    """Seconds of both together, those of each, and what comes after them."""
    with simgpu.one_of(8, "H100", nodes, network=network, launch_s=0.0), torch.device("simgpu"):
        mine, weight = torch.zeros(1024, 8192, dtype=torch.bfloat16), torch.zeros(8192, 8192, dtype=torch.bfloat16)
        whole = torch.zeros(8192, 8192, dtype=torch.bfloat16)
        with simgpu.profile() as prof:
            with contextlib.nullcontext() if chunks is None else simgpu.overlapped(chunks):
                if order == "gather first":
                    dist.all_gather_single(whole, mine, async_op=True).wait()
                made = whole @ weight
                if order == "scatter after":
                    dist.reduce_scatter_single(mine, made)
            mine.add_(1)
    seconds = {event.name: event.seconds for event in prof.events}
    last = prof.events[-1]
    assert last.name == "add_" and all(event.end <= last.start for event in prof.events[:-1])
    (collective,) = seconds.keys() - {"mm", "add_"}
    return last.start, seconds["mm"], seconds[collective]


@pytest.mark.parametrize("order", ["gather first", "scatter after"])
@pytest.mark.parametrize("place", [{}, {"nodes": 8, "network": "Ethernet 25"}], ids=["NVLink", "slow network"])
def test_a_product_in_parts_takes_the_longer_time_of_both_and_a_part_of_the_others(order, place):
    apart, product, collective = product_and_collective(order, **place)
    assert apart == pytest.approx(product + collective)
    for chunks in 1, 4, 8:
        together = product_and_collective(order, chunks, **place)[0]
        shorter, longer = sorted((product, collective))
        assert together == pytest.approx(longer + shorter / chunks)


def test_a_product_has_at_least_one_part():
    with simgpu.one_of(8, "H100"), pytest.raises(ValueError, match="at least 1, not 0"), simgpu.overlapped(0):
        pass
