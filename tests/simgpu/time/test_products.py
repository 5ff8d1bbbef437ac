"""What products and maps cost: hand-counted operations and bytes, tiles of multiprocessors, layouts."""

from dataclasses import replace

import pytest
import torch
from simgpu_support import ADD, MM, elapsed, exactly, million, toy
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import simgpu
from simgpu.hardware import H100
from simgpu.time import costs


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
    usual = simgpu.gpu("toy")
    halves = {kind: rate / 2 for kind, rate in usual.flops.items()}
    slow = replace(usual, flops=halves, memory_bytes_per_s=usual.memory_bytes_per_s / 2)
    simgpu.cluster(gpus_per_node=2, gpu=[usual, slow], launch_s=0)
    for gpu, factor in ((0, 1), (1, 2)):
        x = million(gpu)
        assert elapsed(lambda x=x: x @ x) == exactly(factor * MM)
        assert elapsed(lambda x=x: x + x) == exactly(factor * ADD)


def test_what_an_operator_writes_into_is_not_read():
    simgpu.cluster(gpus_per_node=1, gpu="toy")
    x = torch.ones(1_000_000, device="simgpu:0")
    y = torch.empty_like(x)
    with simgpu.profile() as into:
        torch.mul(x, 0.5, out=y)
    with simgpu.profile() as new:
        torch.mul(x, 0.5)
    assert into.events[0].nbytes == new.events[0].nbytes == 8_000_000
