"""Time on simulated GPUs: hand-counted costs, streams and hosts, and that the same program always takes the same."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from simgpu_support import MODELS, built, happened
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import simgpu
from simgpu.cluster import current
from simgpu.hardware import H100, TOY
from simgpu.time import costs
from simgpu.time.phases import phase_now
from utils.hardware.links import ETHERNET_25, INFINIBAND_NDR, point_to_point
from utils.training.models import GPT, GPT2_SMALL, GPT_7B, GPTConfig, ResNet50

# The toy GPU: 10¹³ FLOP/s, 10¹² bytes/s, links with α = 10 µs and 10¹⁰ bytes/s, kernels as short as they like.
MM = 2e-4  # a product of two 1000×1000 matrices: 2·10⁹ FLOP
ADD = 1.2e-5  # a sum of two million floats: 3 · 4·10⁶ bytes
COPY = 4.1e-4  # a million floats over a link: 10 µs + 4·10⁶ bytes / 10¹⁰
LAUNCH = 1e-5


def toy(gpus=2, launch_s=0.0, **options):
    """A cluster of toy GPUs, by default with a host that needs no time."""
    return simgpu.cluster(gpus_per_node=gpus, gpu="toy", launch_s=launch_s, **options)


def exactly(seconds):
    """Equal but for the last bits of the float."""
    return pytest.approx(seconds, rel=1e-9, abs=1e-15)


def million(gpu=0):
    return torch.ones(1000, 1000, device=f"simgpu:{gpu}")


def elapsed(function):
    """Simulated seconds of a call."""
    with simgpu.profile() as prof:
        function()
    return prof.elapsed


# --- One operator -------------------------------------------------------------------------------------------


def test_a_matrix_product_takes_its_flops_over_the_peak():
    toy()
    x = million()
    with simgpu.profile() as prof:
        x @ x
    (event,) = prof.events
    assert (event.name, event.flops, event.nbytes, event.phase, event.place) == (
        "mm",
        2 * 10**9,
        12 * 10**6,
        "forward",
        "GPU 0",
    )
    assert (event.start, event.end, prof.elapsed, prof.busy(0)) == (0, exactly(MM), exactly(MM), exactly(MM))
    assert prof.busy(1) == 0


def test_everything_else_takes_its_bytes_over_the_bandwidth():
    toy()
    x = million()
    row, flags = x[0], x > 0
    assert elapsed(lambda: x + x) == exactly(ADD)
    assert elapsed(lambda: x + 1) == exactly(8e-6)
    assert elapsed(lambda: x + row) == exactly(8.004e-6)
    assert elapsed(lambda: x + row.expand(1000, 1000)) == exactly(8.004e-6), "a row that is spread out is read once"
    assert elapsed(lambda: x.add_(x)) == exactly(ADD)
    assert elapsed(lambda: x.sum()) == exactly(4.000004e-6)
    assert elapsed(lambda: x.zero_()) == exactly(4e-6), "nothing is read"
    assert elapsed(lambda: flags & flags) == exactly(3e-6)
    assert elapsed(lambda: x.to(torch.bfloat16)) == exactly(6e-6)
    assert elapsed(lambda: torch.zeros(1000, 1000, device="simgpu:0")) == exactly(4e-6)
    assert elapsed(lambda: (x.t(), x.view(-1), x[1:], x.detach(), x.expand(2, 1000, 1000))) == 0, "views are free"
    assert elapsed(lambda: torch.empty(1000, device="simgpu:0")) == 0
    images, ones = x.view(1, 4, 500, 500), torch.ones(4, device="simgpu:0")
    batch_norm = elapsed(lambda: nn.functional.batch_norm(images, None, None, ones, ones, training=True))
    assert batch_norm == pytest.approx(1.2e-5, rel=1e-4), (
        "its input is read twice: for the statistics, and for the result"
    )
    table, tokens = million(), torch.arange(100, device="simgpu:0")
    assert elapsed(lambda: nn.functional.embedding(tokens, table)) == exactly(8e-7), "only the rows that are picked"


def test_products_of_all_kinds_count_their_flops():
    toy()
    x = torch.ones(2, 8, 64, 32, device="simgpu:0")
    images, kernel = torch.ones(4, 3, 16, 16, device="simgpu:0"), torch.ones(6, 3, 5, 5, device="simgpu:0")
    cases = {
        "bmm": (lambda: x[0] @ x[0].mT, 2 * 8 * 64 * 64 * 32),
        "linear": (lambda: nn.functional.linear(x[0, 0], x[0, 1]), 2 * 64 * 64 * 32),
        "convolution": (lambda: nn.functional.conv2d(images, kernel), 2 * 4 * 6 * 12 * 12 * 3 * 5 * 5),
        "attention": (lambda: scaled_dot_product_attention(x, x, x), 2 * (2 * 2 * 8 * 64 * 64 * 32)),
        "causal attention": (lambda: scaled_dot_product_attention(x, x, x, is_causal=True), 2 * 2 * 8 * 64 * 64 * 32),
    }
    for name, (function, flops) in cases.items():
        with simgpu.profile() as prof:
            function()
        assert sum(event.flops for event in prof.events) == flops, name


def test_backward_of_a_layer_costs_two_products():
    toy()
    model = nn.Linear(1000, 1000, bias=False).to("simgpu:0")
    x = million().requires_grad_()
    with simgpu.profile() as prof:
        model(x).sum().backward()
    flops = {phase: sum(e.flops for e in prof.events if e.phase == phase) for phase in ("forward", "backward")}
    assert flops == {"forward": 2 * 10**9, "backward": 4 * 10**9}


def test_real_gpus_reach_a_share_of_their_peak_and_every_kernel_needs_two_microseconds_besides():
    simgpu.cluster(gpus_per_node=1, gpu="H100", launch_s=0, numbers=False)
    x = torch.ones(4096, 4096, device="simgpu:0")
    moved = 3 * x.nbytes / (3350e9 * H100.achievable_bandwidth)
    assert elapsed(lambda: x + x) == exactly(2e-6 + moved)
    assert elapsed(lambda: x[0] + 1) == exactly(2e-6 + 2 * 4 * 4096 / (3350e9 * H100.achievable_bandwidth))
    # 32 × 32 tiles of 128 × 128 over 132 multiprocessors: eight waves.
    peaks = {"highest": 67e12 * H100.achievable_fp32, "high": 494.5e12 * H100.products_share}
    before = torch.get_float32_matmul_precision()
    for precision, rate in peaks.items():
        try:
            torch.set_float32_matmul_precision(precision)
            took = elapsed(lambda: x @ x)
        finally:
            torch.set_float32_matmul_precision(before)
        tile = costs.TILE_CYCLES / H100.clock_hz
        assert took == exactly(2e-6 + 8 * (2 * 128 * 128 * 4096 / (rate / 132) + tile)), precision


def products(left, right, dtype=torch.bfloat16):
    return lambda: (
        torch.empty(left, dtype=dtype, device="simgpu:0") @ torch.empty(right, dtype=dtype, device="simgpu:0")
    )


def test_one_tile_more_than_there_are_multiprocessors_is_one_wave_more():
    simgpu.cluster(gpus_per_node=1, gpu="A100", launch_s=0, numbers=False)  # 108 of them
    full, more = (elapsed(products((rows, 4096), (4096, 1024))) for rows in (27 * 64, 27 * 64 + 1))  # halves × 16 / 4
    assert more - 2e-6 == exactly(2 * (full - 2e-6))


def test_few_tiles_with_long_sums_are_shared_by_several_multiprocessors():
    simgpu.cluster(gpus_per_node=1, gpu="A100", launch_s=0, numbers=False)
    alone = 2 * 128 * 128 * 2**16 / (312e12 * 0.7 / 108)
    assert elapsed(products((128, 2**16), (2**16, 128))) < alone / 40


def test_two_byte_numbers_whose_rows_do_not_begin_at_16_bytes_are_slow():
    simgpu.cluster(gpus_per_node=1, gpu="A100", launch_s=0, numbers=False)
    padded, odd = (elapsed(products((8192, 768), (768, vocabulary))) for vocabulary in (50304, 50257))
    assert odd > 1.5 * padded
    padded32, odd32 = (elapsed(products((8192, 768), (768, size), torch.float32)) for size in (50304, 50257))
    assert odd32 == exactly(padded32), "fp32 does not mind"
    even, rows = (elapsed(products((size, 768), (768, 50258))) for size in (8192, 8191))
    assert padded < even < odd, "every second row begins at a multiple of 4 bytes"
    assert rows == exactly(even), "how many rows there are does not matter: only where each begins"
    simgpu.cluster(gpus_per_node=1, gpu="H100", launch_s=0, numbers=False)
    padded, odd = (elapsed(products((8192, 4096), (4096, vocabulary))) for vocabulary in (50304, 50257))
    assert 5 * padded < odd < 6 * padded, "Hopper loses more: it falls back on kernels of the A100"


def test_tensor_cores_want_channels_last():
    simgpu.cluster(gpus_per_node=1, gpu="A100", launch_s=0, numbers=False)
    times = {}
    for layout in (torch.contiguous_format, torch.channels_last):
        conv = nn.Conv2d(64, 64, 3, padding=1).to("simgpu:0", torch.float16, memory_format=layout)
        x = torch.ones(8, 64, 56, 56, dtype=torch.float16, device="simgpu:0").to(memory_format=layout)
        y = conv(x)
        assert y.is_contiguous(memory_format=layout)
        times[layout] = elapsed(lambda conv=conv, x=x: conv(x))
    maps = 2 * 8 * 64 * 56 * 56  # bytes; the input and the output are each read and written once more
    converted = (
        4 * maps / (0.63 * 2.91e12 * 108 * 1.41 / (132 * 1.98))
    )  # a copy that transposes: its multiprocessors' time
    assert times[torch.contiguous_format] - times[torch.channels_last] == exactly(converted)


def test_a_slower_gpu_is_slower_and_its_neighbours_are_not():
    simgpu.cluster(gpus_per_node=2, gpu=["toy", simgpu.gpu("toy").slower(2)], launch_s=0)
    for gpu, factor in ((0, 1), (1, 2)):
        x = million(gpu)
        assert elapsed(lambda x=x: x @ x) == exactly(factor * MM)
        assert elapsed(lambda x=x: x + x) == exactly(factor * ADD)


# --- The host -----------------------------------------------------------------------------------------------


def test_the_host_launches_one_operator_after_the_other():
    toy(launch_s=LAUNCH)
    x = torch.ones(1, device="simgpu:0")
    with simgpu.profile() as prof:
        for _ in range(100):
            x = x + 1
    assert prof.elapsed == exactly(100 * LAUNCH + 8e-12), "the GPU waits for the host"
    assert [event.launched for event in prof.events] == [exactly((i + 1) * LAUNCH) for i in range(100)]


def test_the_host_runs_ahead_of_a_busy_gpu():
    toy(launch_s=LAUNCH)
    x = million()
    with simgpu.profile() as prof:
        for _ in range(10):
            y = x @ x
    assert prof.elapsed == exactly(LAUNCH + 10 * MM)
    assert prof.events[-1].launched == exactly(10 * LAUNCH)
    with simgpu.profile() as prof:
        for _ in range(10):
            y = x @ x
            torch.simgpu.synchronize()
    assert prof.elapsed == exactly(10 * (LAUNCH + MM)), "waiting for each one"
    with simgpu.profile() as prof:
        (x @ x)[0, 0].item()
        (x @ x)[0, 0].item()
    copy = LAUNCH + 1e-5 + 4e-10
    assert prof.elapsed == exactly(2 * (max(LAUNCH + MM, LAUNCH) + copy) - 2 * LAUNCH), "reading a number waits too"
    del y


def test_an_operator_whose_result_has_an_unknown_size_makes_the_host_wait():
    toy(launch_s=LAUNCH)
    x = million()
    for function, waits in ((lambda: x[0].nonzero(), True), (lambda: x[0] + 1, False)):
        with simgpu.profile() as prof:
            x @ x
            function()
            x + 1
        assert prof.events[-1].launched == exactly(prof.events[-2].end + LAUNCH if waits else 3 * LAUNCH)


def test_one_host_feeds_two_gpus_at_the_same_time():
    toy(launch_s=LAUNCH)
    x, y = million(0), million(1)
    assert elapsed(lambda: (x @ x, y @ y)) == exactly(2 * LAUNCH + MM)


def test_launching_from_backward_costs_what_was_said():
    for backward_launch_s, factor in ((None, 0.5), (0.0, 0.0), (3 * LAUNCH, 3.0)):
        toy(launch_s=LAUNCH, backward_launch_s=backward_launch_s)
        x = torch.ones(1, device="simgpu:0", requires_grad=True)
        y = x.sin().sin().sin()
        with simgpu.profile() as prof:
            y.backward()
        backward = [event for event in prof.events if event.phase == "backward"]
        assert len(backward) >= 6
        assert all(event.launch_s == exactly(factor * LAUNCH) for event in backward)
        assert {event.host for event in backward} == {"backward, GPU 0"}


def test_backward_on_two_gpus_has_a_host_thread_for_each():
    toy(launch_s=0, backward_launch_s=LAUNCH)
    losses = []
    for gpu in range(2):
        x = torch.ones(1, device=f"simgpu:{gpu}", requires_grad=True)
        for _ in range(20):
            x = x.sin()
        losses.append(x)
    both = losses[0] + losses[1].to("simgpu:0")
    with simgpu.profile() as prof:
        both.backward()
    hosts = {event.host: sum(e.launch_s for e in prof.events if e.host == event.host) for event in prof.events}
    assert {"backward, GPU 0", "backward, GPU 1"} <= set(hosts)
    assert prof.elapsed < 0.7 * sum(hosts.values()), "they launch at the same time"


def test_threads_that_launch_from_python_take_turns_unless_the_gil_is_off():
    times = {}
    for held in (LAUNCH, LAUNCH / 2, 0.0):
        toy(4, launch_s=LAUNCH, gil_s=held)

        def work(gpu):
            x = torch.ones(1, device=f"simgpu:{gpu}")
            for _ in range(9):
                x = x + 1

        with simgpu.profile() as prof:
            threads = [threading.Thread(target=work, args=(gpu,)) for gpu in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        times[held] = prof.elapsed
    assert times[LAUNCH] == exactly(40 * LAUNCH + 8e-12), "all of a launch holds it: one thread at a time"
    assert times[LAUNCH / 2] == exactly(20.5 * LAUNCH + 8e-12), "and the last one's other half"
    assert times[0.0] == exactly(10 * LAUNCH + 8e-12)
    toy(4, launch_s=LAUNCH, gil=False)
    assert current().clock.gil_s == 0


# --- Copies -------------------------------------------------------------------------------------------------


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


def test_links_can_be_chosen():
    simgpu.cluster(gpus_per_node=2, gpu="toy", launch_s=0, inside=INFINIBAND_NDR)
    x = million()
    assert elapsed(lambda: x.to("simgpu:1")) == exactly(point_to_point(4e6, INFINIBAND_NDR.for_copies()))


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
    assert simgpu.cluster(2, 8, "A100", numbers=False).network.speed == "200 Gbit/s"


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


def test_what_comes_back_to_the_host_is_waited_for():
    toy(launch_s=LAUNCH)
    x = million()
    with simgpu.profile() as prof:
        (x @ x).cpu()
        x + 1
    assert [event.name for event in prof.events] == ["mm", "copy to host", "add"]
    assert prof.events[1].start == exactly(LAUNCH + MM)
    assert prof.events[2].launched == exactly(prof.events[1].end + LAUNCH)


# --- Streams ------------------------------------------------------------------------------------------------


def test_a_side_stream_overlaps_a_copy_with_computing():
    toy()
    x = million()

    def one_stream():
        x.to("simgpu:1")
        x @ x

    def two_streams():
        with torch.simgpu.stream(torch.simgpu.Stream(0)):
            x.to("simgpu:1")
        x @ x

    assert elapsed(one_stream) == exactly(COPY + MM)
    assert elapsed(two_streams) == exactly(COPY)


def test_work_of_two_streams_runs_at_the_same_time_unless_one_waits():
    toy()
    x, side = million(), simgpu.Stream(0)

    def work(wait):
        y = x @ x
        if wait == "stream":
            side.wait_stream(torch.simgpu.current_stream(0))
        elif wait == "event":
            side.wait_event(torch.simgpu.default_stream(0).record_event())
        with simgpu.stream(side):
            x @ x
        return y

    assert elapsed(lambda: work(None)) == exactly(MM)
    assert elapsed(lambda: work("stream")) == exactly(2 * MM)
    assert elapsed(lambda: work("event")) == exactly(2 * MM)


def test_what_is_read_in_another_stream_has_been_written():
    toy()
    x, side = million(), simgpu.Stream(0)
    y = x @ x
    with simgpu.profile() as prof, simgpu.stream(side):
        z = y @ y
    assert prof.elapsed == exactly(MM)

    def chain():
        first = x @ x
        with simgpu.stream(side):
            first @ first

    assert elapsed(chain) == exactly(2 * MM)
    del z


def test_events_measure_time_between_them():
    toy(launch_s=LAUNCH)
    x = million()
    start, end = simgpu.Event(enable_timing=True), torch.simgpu.Event(enable_timing=True)
    torch.simgpu.synchronize()
    start.record()
    for _ in range(3):
        x = x @ x
    end.record()
    assert not end.query(), "the host is ahead"
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) == exactly(1e3 * (LAUNCH + 3 * MM)), "in milliseconds, as torch.cuda.Event"


def test_streams_belong_to_gpus():
    toy()
    side = simgpu.Stream(1)
    assert side.device == simgpu.device(1)
    with simgpu.stream(side):
        assert torch.simgpu.current_stream(1) is side
        assert torch.simgpu.current_stream(0) is torch.simgpu.default_stream(0)
        assert torch.simgpu.current_device() == 1
    assert torch.simgpu.current_stream(1) is torch.simgpu.default_stream(1)
    assert torch.simgpu.current_device() == 0
    assert side.query()


# --- Profiles -----------------------------------------------------------------------------------------------


def test_regions_name_the_work_inside_also_in_backward():
    toy()
    x = million().requires_grad_()
    with simgpu.profile() as prof:
        with simgpu.region("F1"):
            y = (x @ x).sum()
        z = y * 2
        with simgpu.region("B1"):
            z.backward()
    named = {(event.region, event.phase) for event in prof.events if event.name != "ones_like"}
    assert named == {("F1", "forward"), ("", "forward"), ("B1", "backward")}
    assert [event.region for event in prof.events if event.name == "ones_like"] == ["B1"], "where backward begins"
    assert {"F1", "B1"} <= {span.label for span in prof.spans()}
    with pytest.raises(ZeroDivisionError), simgpu.region("broken"):
        x + 1 / 0
    with simgpu.profile() as prof:
        x + 1
    assert [event.region for event in prof.events] == [""], "a region ends with an error, too"


def test_phases_are_told_apart():
    toy()
    model = nn.Linear(10, 10).to("simgpu:0")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with simgpu.profile() as prof:
        model(torch.ones(2, 10).to("simgpu:0")).sum().backward()
        optimizer.step()
    assert [event.phase for event in prof.events if event.name == "copy from host"] == ["communication"]
    assert {event.phase for event in prof.events} == {"forward", "backward", "optimizer", "communication"}


def test_a_profile_counts_nothing_from_before_or_after():
    toy(launch_s=LAUNCH)
    x = million()
    for _ in range(5):
        x @ x
    with simgpu.profile() as prof:
        x @ x
    for _ in range(5):
        x @ x
    assert len(prof.events) == 1
    assert (prof.events[0].start, prof.elapsed) == (exactly(LAUNCH), exactly(LAUNCH + MM))
    with simgpu.profile() as outer, simgpu.profile() as inner:
        x @ x
    assert happened(inner) == happened(outer) != []


def test_a_profile_that_is_left_by_an_error_ends():
    toy()
    x = million()
    with pytest.raises(ZeroDivisionError), simgpu.profile() as prof:
        x @ x
        1 / 0  # noqa: B018
    x @ x
    assert len(prof.events) == 1
    assert prof.elapsed == exactly(MM)


def test_the_picture_of_the_timeline_shows_lanes_and_says_that_it_is_simulated():
    toy(launch_s=LAUNCH)
    x = million()
    with simgpu.profile() as prof:
        x.to("simgpu:1") @ million(1)
    picture = prof.timeline(title="two GPUs")
    assert "simulated" in picture.data.decode()
    assert {span.lane for span in prof.spans()} == {"GPU 1", "GPU 0 → GPU 1", "host"}
    assert {span.lane for span in prof.spans(links=False, host=False)} == {"GPU 1"}


# --- The same program, the same time ------------------------------------------------------------------------


def _train_in_parallel(gpus, **options):
    simgpu.cluster(gpus_per_node=gpus, **options)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10))
    parallel = nn.DataParallel(model.to("simgpu:0"))
    optimizer = torch.optim.Adam(parallel.parameters())
    batch, labels = torch.randn(3 * gpus, 64), torch.zeros(3 * gpus, dtype=torch.long, device="simgpu:0")
    with simgpu.profile() as prof:
        for _ in range(2):
            optimizer.zero_grad()
            loss = cross_entropy(parallel(batch), labels)
            loss.backward()
            optimizer.step()
    return prof.elapsed, happened(prof), [prof.peak_memory(gpu) for gpu in range(gpus)], loss.item()


@pytest.mark.parametrize(("gpus", "times"), [(4, 5), (20, 2)])
def test_the_same_program_gives_the_same_timeline_also_with_threads(gpus, times):
    first = _train_in_parallel(gpus)
    assert len(first[1]) > 30 * gpus
    for _ in range(times - 1):
        again = _train_in_parallel(gpus)
        assert again[0] == first[0]
        assert again[1] == first[1]
        assert again[2:] == first[2:]


def test_the_gil_makes_the_forward_of_data_parallel_longer():
    assert _train_in_parallel(8, gil=True)[0] > 1.1 * _train_in_parallel(8, gil=False)[0]


def test_a_faster_host_helps_small_models():
    times = [_train_in_parallel(2, launch_s=launch_s)[0] for launch_s in (20e-6, 10e-6, 0.0)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 3 * times[2]


def test_two_times_in_one_process_are_the_same_as_one_after_the_other():
    toy(launch_s=LAUNCH)
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)).to("simgpu:1")
    x = torch.ones(8, 32, device="simgpu:1")

    def step():
        model.zero_grad()
        with simgpu.profile() as prof:
            model(x).sum().backward()
        return prof

    step()
    profiles = [step() for _ in range(5)]
    for prof in profiles[1:]:
        assert prof.elapsed == exactly(profiles[0].elapsed)
        assert [event.name for event in prof.events] == [event.name for event in profiles[0].events]


# --- Shapes only --------------------------------------------------------------------------------------------


def _measure(numbers, make, batch, gpu):
    simgpu.cluster(gpus_per_node=2, numbers=numbers)
    torch.manual_seed(0)
    home = f"simgpu:{gpu}"
    model, batch = make().to(home), batch.to(home)
    targets = torch.zeros(len(batch), dtype=torch.long, device=home)
    optimizer = torch.optim.AdamW(model.parameters())
    shapes, profiles = [], []
    for _ in range(2):
        with simgpu.profile() as prof:
            optimizer.zero_grad()
            out = model(batch)
            loss = cross_entropy(out, targets)
            loss.backward()
            optimizer.step()
        shapes.append(
            [(t.shape, t.stride(), t.dtype, t.device) for t in (out, loss, *(p.grad for p in model.parameters()))]
        )
        profiles.append(
            (
                prof.elapsed,
                happened(prof),
                prof.peak_memory(gpu),
                prof.memory_at_peak(gpu),
                torch.simgpu.memory_allocated(gpu),
            )
        )
    return shapes, profiles


@pytest.mark.parametrize("name", MODELS)
def test_shapes_alone_give_the_same_time_memory_and_shapes(name):
    batch = MODELS[name][1]
    with_numbers = _measure(True, lambda: built(name), batch, 1)
    assert _measure(False, lambda: built(name), batch, 1) == with_numbers
    # Another batch size in the same process: what is remembered of one shape must not answer for another.
    assert _measure(False, lambda: built(name), batch[:2], 1) == _measure(True, lambda: built(name), batch[:2], 1)


def test_shapes_alone_are_right_for_views_broadcasts_and_types():
    def program():
        x = torch.ones(4, 6, device="simgpu:1")
        y = torch.ones(4, 6, dtype=torch.int64, device="simgpu:1")
        results = []
        for _ in range(2):  # the second time the answers are remembered
            results += [
                x + y,
                x.t() + y.t(),
                x[:, ::2] * 2,
                x[1:] + x[:1],
                x.half() + x,
                y / 2,
                y // 2,
                y + True,
                y + 1.5,
            ]
            results += [
                x.sum(0),
                x.sum(1),
                x.sum(0, keepdim=True),
                x.max(1)[1],
                x.argmax(),
                x.cumsum(0),
                x.t().contiguous(),
            ]
            results += [
                x.expand(3, 4, 6) + 1,
                x.add_(1),
                x.t_(),
                x.t_(),
                torch.cat([x, x[:2]]),
                *x.chunk(2),
                *x.split([1, 3]),
            ]
            results += [
                x.softmax(0),
                x.view(2, 12) @ x.view(12, 2),
                x[None] @ x.t(),
                torch.where(x > 0, x, 0.0),
                x.to(torch.half),
            ]
            results += [
                torch.ones(3, device="simgpu:1"),
                torch.arange(5, device="simgpu:1"),
                torch.randperm(4, device="simgpu:1"),
            ]
            results += [x.neg(), y.neg(), x.half().neg(), x.double().neg(), y.int().neg()]
            results += [
                x.clone(memory_format=torch.contiguous_format),
                x.t().clone(),
                torch.empty_like(x.t()),
                x.new_zeros(2),
            ]
        return [
            (tuple(t.shape), t.stride(), t.dtype, t.device, t._version) for t in results
        ], torch.simgpu.max_memory_allocated(1)

    simgpu.cluster(gpus_per_node=2)
    expected = program()
    simgpu.cluster(gpus_per_node=2, numbers=False)
    assert program() == expected


def test_shapes_alone_follow_the_default_type():
    simgpu.cluster(gpus_per_node=1, numbers=False)
    whole = torch.ones(3, dtype=torch.int64, device="simgpu:0")
    types = []
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            types.append(
                (torch.ones(3, device="simgpu:0").dtype, (whole / 2).dtype, (whole + 0.5).dtype, whole.sin().dtype)
            )
        finally:
            torch.set_default_dtype(torch.float32)
    assert types == [(torch.float32,) * 4, (torch.float64,) * 4, (torch.float32,) * 4]


def test_remembered_costs_are_those_of_the_gpu_and_of_the_settings():
    def seconds(gpu, precision):
        simgpu.cluster(gpus_per_node=1, gpu=gpu, numbers=False)
        torch.set_float32_matmul_precision(precision)
        try:
            a = torch.empty(4096, 4096, device="simgpu:0")
            with simgpu.profile() as prof:
                a @ a
            return prof.events[0].seconds
        finally:
            torch.set_float32_matmul_precision("highest")

    fp32, tf32, other, again = (
        seconds(*case) for case in (("A100", "highest"), ("A100", "high"), ("V100", "highest"), ("A100", "highest"))
    )
    assert tf32 < fp32 / 3 and other > fp32 and again == fp32


def test_remembered_shapes_are_new_tensors_each_time():
    simgpu.cluster(gpus_per_node=1, numbers=False)
    x = torch.ones(128, device="simgpu:0")
    kept = [x + 1 for _ in range(4)]
    assert torch.simgpu.memory_allocated(0) == 5 * 512
    kept[0].unsqueeze_(0)
    assert [tuple(t.shape) for t in kept] == [(1, 128), (128,), (128,), (128,)]


def test_data_parallel_takes_the_same_time_with_shapes_alone():
    def measure(numbers):
        simgpu.cluster(gpus_per_node=3, numbers=numbers)
        model = nn.DataParallel(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)).to("simgpu:0"))
        with simgpu.profile() as prof:
            model(torch.ones(9, 16)).sum().backward()
        return prof.elapsed, happened(prof), [prof.memory_at_peak(gpu) for gpu in range(3)]

    assert measure(True) == measure(False)


def test_large_models_take_moments():
    simgpu.cluster(gpus_per_node=2, gpu="H100", numbers=False)
    with torch.device("simgpu:0"):
        resnet, gpt = ResNet50(), GPT(GPT2_SMALL)
        images, tokens = torch.empty(64, 3, 224, 224), torch.zeros(4, 1024, dtype=torch.long)
    for model, arguments, gigabytes in ((resnet, (images,), (2, 20)), (gpt, (tokens, tokens), (4, 20))):
        torch.simgpu.reset_peak_memory_stats(0)
        with simgpu.profile() as prof:
            model(*arguments).sum().backward()
        assert 0.01 < prof.elapsed < 2
        assert gigabytes[0] * 1e9 < prof.peak_memory(0) < gigabytes[1] * 1e9
        forward, backward = (sum(e.flops for e in prof.events if e.phase == phase) for phase in ("forward", "backward"))
        assert 1.9 < backward / forward < 2.1
        model.zero_grad()
    parameters = sum(p.numel() for p in resnet.parameters())
    assert parameters == 25_557_032


def test_seven_billion_parameters_do_not_fit_with_adam_and_do_in_bfloat16():
    simgpu.cluster(gpus_per_node=1, gpu="H100", numbers=False)
    with torch.device("simgpu:0"):
        model = GPT(GPT_7B)
    assert torch.simgpu.memory_allocated(0) == pytest.approx(4 * 6_658_404_352, rel=1e-4)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.zeros(1, 512, dtype=torch.long, device="simgpu:0")
    model(tokens, tokens).backward()
    with pytest.raises(torch.OutOfMemoryError):
        optimizer.step()
    del optimizer
    model.zero_grad()
    model.bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(tokens, tokens).backward()
    optimizer.step()
    assert torch.simgpu.memory_allocated(0) < 30e9


def test_checkpointing_costs_time_and_saves_memory():
    results = {}
    for checkpointing in (False, True):
        simgpu.cluster(gpus_per_node=1, numbers=False, launch_s=0)
        config = GPTConfig(layers=4, heads=8, width=512, vocabulary=1000, context=512, checkpointing=checkpointing)
        with torch.device("simgpu:0"):
            model, tokens = GPT(config), torch.zeros(8, 512, dtype=torch.long)
        with simgpu.profile() as prof:
            model(tokens, tokens).backward()
        results[checkpointing] = prof.elapsed, prof.memory_at_peak(0)["activations"]
    assert 1.15 < results[True][0] / results[False][0] < 1.4, "one more forward of the blocks"
    assert results[True][1] < 0.7 * results[False][1]
    assert math.isfinite(results[True][0])


def test_what_an_operator_writes_into_is_not_read():
    simgpu.cluster(gpus_per_node=1, gpu="toy")
    x = torch.ones(1_000_000, device="simgpu:0")
    y = torch.empty_like(x)
    with simgpu.profile() as into:
        torch.mul(x, 0.5, out=y)
    with simgpu.profile() as new:
        torch.mul(x, 0.5)
    assert into.events[0].nbytes == new.events[0].nbytes == 8_000_000


# --- Threads that live on, and steps that fail --------------------------------------------------------------


def _with_a_pool(threads):
    cluster = toy(launch_s=LAUNCH)
    x, y = million(), million().to("simgpu:1")
    waiting = []
    with simgpu.profile() as prof, ThreadPoolExecutor(threads) as pool:
        for _ in range(20):
            for task in [pool.submit(lambda tensor: tensor @ tensor, each) for each in (x, y)]:
                task.result()
            x + 1
            waiting.append(len(cluster.clock.main.queue))
    return waiting, happened(prof)


def test_a_pool_of_threads_keeps_the_order_and_nothing_waits():
    waiting, events = _with_a_pool(2)
    assert waiting == [0] * 20, "what the main thread launches after a task's result is placed at once"
    products = sorted(event[6] for event in events if event[0] == "mm")  # when the host had launched them
    sums = sorted(event[6] for event in events if event[0] == "add")
    assert all(products[2 * i + 1] < launched for i, launched in enumerate(sums)), "after the two tasks before it"
    assert all(launched < products[2 * i + 2] for i, launched in enumerate(sums[:-1])), "and before the next ones"
    assert _with_a_pool(2)[1] == events


def _freeing_between_two_tasks(frees):
    toy(launch_s=LAUNCH)
    x, y = million(), million().to("simgpu:1")
    kept, go = [x * 2], threading.Event()
    with simgpu.profile() as prof, ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(lambda: x @ x), pool.submit(lambda: go.wait(60) and y @ y)
        first.result()
        if frees:
            kept.clear()
        go.set()
        second.result()
        x + 1
    return happened(prof)


def test_memory_that_is_freed_between_two_tasks_of_a_pool_does_not_part_them():
    assert _freeing_between_two_tasks(True) == _freeing_between_two_tasks(False)


class FailingSGD(torch.optim.SGD):
    def step(self, closure=None):
        self.param_groups[0]["params"][0].data.add_(1)
        raise ValueError("a step that fails")


def test_a_step_that_fails_ends_and_other_optimizers_work():
    toy()
    x = torch.ones(100, 100, device="simgpu:0", requires_grad=True)
    x.sum().backward()
    failing, other = FailingSGD([x], lr=0.1), torch.optim.SGD([x], lr=0.1)
    with simgpu.profile() as prof:
        with pytest.raises(ValueError, match="a step that fails"):
            failing.step()
        y = x * 2
        other.step()
        z = y + 1
    phases = [(event.name, event.phase) for event in prof.events]
    assert phases == [
        *(("add_", "optimizer"), ("mul", "forward")),
        *(("_foreach_add_", "optimizer"), ("add", "forward")),
    ]
    assert prof.memory_at_peak(0)["activations"] >= y.nbytes + z.nbytes


def test_a_step_in_one_thread_is_none_in_another():
    toy()
    x = torch.ones(100, device="simgpu:0", requires_grad=True)
    x.sum().backward()
    phases = []

    class Slow(torch.optim.SGD):
        def step(self, closure=None):
            other = threading.Thread(target=lambda: phases.append(phase_now()))
            other.start()
            other.join()
            phases.append(phase_now())

    Slow([x], lr=0.1).step()
    assert phases == ["forward", "optimizer"]
