"""Copies between GPUs, nodes and the host: how long they take, and who waits for them."""

import pytest
import torch
from simgpu_support import COPY, LAUNCH, MM, elapsed, exactly, million, toy

import simgpu
from simgpu.cluster import current
from simgpu.hardware import TOY
from utils.hardware.links import ETHERNET_25, point_to_point


def test_a_copy_between_gpus_takes_alpha_plus_n_beta():
    toy()
    x = million()
    with simgpu.profile() as prof:
        y = x.to("simgpu:1")
    (event,) = prof.events
    assert (event.name, event.place, event.gpus, event.phase) == ("copy", "GPU 0 → GPU 1", (0, 1), "communication")
    assert prof.elapsed == exactly(COPY) == exactly(point_to_point(4e6, TOY.nvlink))
    assert (prof.transferred(), prof.transferred(0, 1), prof.transferred(1, 0)) == (4 * 10**6, 4 * 10**6, 0)
    assert prof.busy(0) == prof.busy(1) == 0
    del y


def test_the_target_waits_for_the_copy_and_the_host_does_not():
    toy(launch_s=LAUNCH)
    x = million()
    with simgpu.profile() as prof:
        y = x.to("simgpu:1")
        y @ y
        x @ x
    copy, there, here = (next(e for e in prof.events if e.place == p) for p in ("GPU 0 → GPU 1", "GPU 1", "GPU 0"))
    assert copy.start == exactly(LAUNCH)
    assert there.start == exactly(copy.end)
    assert here.start == exactly(copy.end), "the copy runs in the stream of the source"
    assert here.launched == exactly(3 * LAUNCH)


def test_both_directions_of_a_link_work_at_the_same_time_and_one_direction_does_not_carry_two():
    toy(3)
    x, y = million(0), million(1)
    side = simgpu.Stream(0)
    assert elapsed(lambda: (x.to("simgpu:1"), y.to("simgpu:2"))) == exactly(2 * COPY), "GPU 1's stream waits"

    def two_ways():
        with simgpu.stream(side), simgpu.stream(simgpu.Stream(1)):
            x.to("simgpu:1")
        y.to("simgpu:0")

    assert elapsed(two_ways) == exactly(COPY)

    def one_way_twice():
        x.to("simgpu:1")
        with simgpu.stream(side):
            x.to("simgpu:2")

    assert elapsed(one_way_twice) == exactly(2 * COPY), "GPU 0 has one link out"


@pytest.mark.parametrize(("gpus_per_node", "link"), [(2, TOY.nvlink), (1, ETHERNET_25.for_copies())])
def test_gpus_of_different_nodes_use_the_network(gpus_per_node, link):
    simgpu.cluster(nodes=2, gpus_per_node=gpus_per_node, gpu="toy", launch_s=0, network=ETHERNET_25)
    x = million()
    assert elapsed(lambda: x.to("simgpu:1")) == exactly(point_to_point(4e6, link))
    if gpus_per_node == 2:
        assert elapsed(lambda: x.to("simgpu:2")) == exactly(point_to_point(4e6, ETHERNET_25.for_copies()))


def test_pageable_memory_is_slower_than_pinned_memory_and_pinning_takes_time():
    simgpu.cluster(gpus_per_node=1, gpu="A100", launch_s=0)
    host, target = torch.ones(1000, 1000), torch.empty(1000, 1000, device="simgpu:0")
    begin = current().now()
    pinned = host.pin_memory()
    assert current().now() - begin == exactly(4e6 / 2.76e9 + 4e6 / 10e9), "to pin new memory, and to copy"
    pageable = elapsed(lambda: target.copy_(host))
    assert pageable == exactly(5.7e-6 + 4e6 / 10e9)
    assert elapsed(lambda: target.copy_(pinned)) == exactly(5.7e-6 + 4e6 / 25.9e9)
    assert elapsed(lambda: host.copy_(target)) == exactly(pageable)
    assert elapsed(lambda: pinned.copy_(target)) == exactly(5.7e-6 + 4e6 / 25.9e9)
    del pinned
    begin = current().now()
    pinned = host.pin_memory()
    assert current().now() - begin == exactly(4e6 / 10e9), "torch keeps pinned memory, for the next one who asks"


def test_a_copy_to_pinned_memory_need_not_be_waited_for():
    simgpu.cluster(gpus_per_node=1, gpu="A100", launch_s=LAUNCH)
    source, pinned = torch.ones(1000, 1000, device="simgpu:0"), torch.empty(1000, 1000).pin_memory()
    for non_blocking, waits in ((False, True), (True, False)):
        with simgpu.profile() as prof:
            pinned.copy_(source, non_blocking=non_blocking)
            source + 1
        copy, add = prof.events
        assert (add.launched > copy.end) is waits
    assert torch.equal(pinned, torch.ones(1000, 1000))


def test_gpus_without_access_to_each_other_copy_through_the_host_and_share_its_wires():
    simgpu.cluster(gpus_per_node=2, gpu="RTX 4090", launch_s=0)
    x = million()
    assert elapsed(lambda: x.to("simgpu:1")) == exactly(5.7e-6 + 4e6 / (0.85 * 25.9e9))
    pinned = torch.ones(1000, 1000).pin_memory()
    target, side = torch.empty(1000, 1000, device="simgpu:1"), simgpu.Stream(1)
    alone = 5.7e-6 + 4e6 / 25.9e9

    def both():
        x.to("simgpu:1")
        with simgpu.stream(side):
            target.copy_(pinned, non_blocking=True)

    assert elapsed(both) == exactly(5.7e-6 + 4e6 / (0.85 * 25.9e9) + alone), "one after the other"


@pytest.mark.parametrize(("nics", "times"), [(4, 1), (2, 2), (1, 4)])
def test_gpus_share_the_network_cards_of_their_node(nics, times):
    simgpu.cluster(2, 4, "toy", launch_s=0, network=ETHERNET_25, nics_per_node=nics)
    sources = [million(gpu) for gpu in range(4)]
    alone = point_to_point(4e6, ETHERNET_25.for_copies())
    assert elapsed(lambda: [x.to(f"simgpu:{gpu + 4}") for gpu, x in enumerate(sources)]) == exactly(times * alone)


def test_a_node_has_the_network_cards_that_its_maker_puts_there():
    cards = {gpu: simgpu.cluster(2, 8, gpu, numbers=False).nics_per_node for gpu in ("H100", "V100", "RTX 4090")}
    assert cards == {"H100": 8, "V100": 4, "RTX 4090": 2}
    assert simgpu.cluster(2, 8, "A100", numbers=False).network.bytes_per_s == 25e9


def test_ordinary_memory_holds_the_host_and_pinned_memory_does_not():
    toy(launch_s=LAUNCH)
    x, host = million(), torch.ones(1000, 1000)
    pinned = simgpu.pin(host)
    for source, non_blocking, waits in (
        (host, False, True),
        (host, True, True),
        (pinned, False, True),
        (pinned, True, False),
    ):
        with simgpu.profile() as prof:
            y = source.to("simgpu:1", non_blocking=non_blocking)
            x @ x
        copy = next(event for event in prof.events if event.name == "copy from host")
        product = next(event for event in prof.events if event.name == "mm")
        assert copy.seconds == exactly(COPY)
        assert product.launched == exactly(LAUNCH + (copy.end if waits else LAUNCH)), (non_blocking, waits)
    del y


def test_memory_is_pinned_as_for_cuda():
    toy(launch_s=LAUNCH)
    pinned, x = torch.ones(1000, 1000).pin_memory(), million()
    assert pinned.is_pinned()
    assert not torch.ones(3).is_pinned()
    assert pinned[3:].is_pinned(), "a view is in the same memory"
    with simgpu.profile() as prof:
        pinned.to("simgpu:1", non_blocking=True)
        x @ x
    assert prof.elapsed == exactly(max(LAUNCH + COPY, 2 * LAUNCH + MM)), "at the same time"
    loader = torch.utils.data.DataLoader(torch.arange(12.0).view(6, 2), batch_size=3, pin_memory=True)
    assert [batch.is_pinned() for batch in loader] == [True, True]


def test_a_number_of_the_host_is_part_of_a_launch_unless_it_is_copied():
    toy(launch_s=LAUNCH)
    x, number = million(), torch.tensor(2.0)
    with simgpu.profile() as prof:
        x.mul_(number)
        x.fill_(number)
        x[0] = number
        torch.empty((), device="simgpu:0").copy_(number)
    assert [event.name for event in prof.events] == ["mul_", "fill_", "fill_", "copy from host"]
    assert prof.events[-1].nbytes == 4
