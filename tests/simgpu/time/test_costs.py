"""What operators cost, kind by kind: bytes and operations of those that are no plain product and no plain map."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import simgpu
from simgpu.hardware import ALL, B200, H100
from simgpu.time import nccl
from utils.hardware.links import INFINIBAND_NDR, NVLINK4

DEVICE = "simgpu:0"


def events(function, gpu="H100", numbers=False):
    """What one call of a function puts on the timeline (``function`` makes the call, and returns it)."""
    with simgpu.cluster(gpus_per_node=1, gpu=gpu, launch_s=0, numbers=numbers), torch.device(DEVICE):
        run = function()
        run()  # what comes with the first one
        with simgpu.profile() as prof:
            run()
        return [event for event in prof.events if event.seconds]


def seconds(function, gpu="H100"):
    return sum(event.seconds for event in events(function, gpu))


def flops(function):
    return sum(event.flops for event in events(function, "toy"))


def stepping(kind, **options):
    def make():
        parameters = [nn.Parameter(torch.empty(1000)) for _ in range(5)]
        for one in parameters:
            one.grad = torch.empty_like(one)
        return kind(parameters, **options).step

    return make


def test_optimizers_count_what_they_write_however_they_walk_over_parameters():
    moved = {
        name: sum(event.nbytes for event in events(stepping(kind, **options), "toy")) / (5 * 1000 * 4)
        for name, kind, options in (
            ("loop", torch.optim.AdamW, {"foreach": False}),
            ("lists", torch.optim.AdamW, {"foreach": True}),
            ("fused", torch.optim.AdamW, {"fused": True}),
            ("momentum", torch.optim.SGD, {"foreach": True, "momentum": 0.9}),
        )
    }
    assert moved["lists"] == pytest.approx(moved["loop"], rel=0.02)
    assert moved["lists"] == pytest.approx(21, rel=0.02)
    assert moved["fused"] == pytest.approx(8, rel=0.02), "parameters, gradients and both states: read, and written"
    assert moved["momentum"] == pytest.approx(8, rel=0.02)


ROWS, WIDTH = 10_000, 64


@pytest.mark.parametrize(
    ("write", "times"),
    [
        (lambda table, where, values: table.index_put_((where,), values), 2),
        (lambda table, where, values: table.index_put_((where,), values, accumulate=True), 3),
        (lambda table, where, values: table.index_copy_(0, where, values), 2),
        (lambda table, where, values: table.index_add_(0, where, values), 3),
        (lambda table, where, values: table.index_fill_(0, where, 0.0), 1),
        (lambda table, where, values: table.scatter_(0, where[:, None].expand_as(values), values), 2),
        (lambda table, where, values: table.scatter_add_(0, where[:, None].expand_as(values), values), 3),
    ],
)
def test_who_writes_some_rows_of_a_table_does_not_pay_for_all(write, times):
    def make():
        table, where = torch.empty(ROWS, WIDTH), torch.zeros(10, dtype=torch.long)
        values = torch.empty(10, WIDTH)
        return lambda: write(table, where, values)

    (event,) = events(make, "toy")
    assert event.nbytes == times * 10 * WIDTH * 4 + 10 * 8, "the rows, and where they are"


def test_a_mask_may_write_everywhere():
    def make():
        table, mask = torch.empty(ROWS, WIDTH), torch.ones(ROWS, dtype=torch.bool)
        return lambda: table.index_put_((mask,), torch.zeros(()))

    assert max(event.nbytes for event in events(make, "toy")) >= ROWS * WIDTH * 4


def product(size=8192, dtype=torch.bfloat16):
    def make():
        a, b = (torch.empty(size, size, dtype=dtype) for _ in range(2))
        return lambda: a @ b

    return make


def test_power_limits_products_and_nothing_else():
    weak = replace(H100, name="H100 of 350 W", board_power=350)
    assert seconds(product(), weak) == pytest.approx(2 * seconds(product()), rel=0.02)
    unlimited = replace(H100, name="H100 without limit", board_power=0)
    assert seconds(product(), unlimited) < 0.95 * seconds(product())
    assert unlimited.products_share == H100.achievable_flops

    def adding():
        x = torch.empty(10_000_000)
        return lambda: x + x

    assert seconds(adding, weak) == seconds(adding)


def test_a_gpu_follows_from_its_data_sheet():
    """1,091 TFLOP/s were measured on 1,000 W (514 shapes): the H100's energy for each operation says 1,050."""
    assert B200.products_share * B200.peak_flops("bf16") == pytest.approx(1091e12, rel=0.05)
    assert all(0 < one.products_share < 1.1 and 0 < one.attention_share <= 1 for one in ALL)


def convolving(function, image, weight, backward=False, layout=torch.contiguous_format, dtype=torch.float32, **how):
    def make():
        x = torch.empty(image, dtype=dtype).to(memory_format=layout).requires_grad_(backward)
        w = torch.empty(weight, dtype=dtype).to(memory_format=layout).requires_grad_(backward)
        if not backward:
            return lambda: function(x, w, **how)
        out = function(x, w, **how)
        grad = torch.ones_like(out)
        return lambda: torch.autograd.grad(out, (x, w), grad, retain_graph=True)

    return make


def test_a_transposed_convolution_has_the_operations_of_the_one_that_it_reverses():
    there = flops(convolving(F.conv2d, (2, 8, 32, 32), (16, 8, 4, 4), stride=2, padding=1))
    back = flops(convolving(F.conv_transpose2d, (2, 16, 16, 16), (16, 8, 4, 4), stride=2, padding=1))
    assert there == back == 2 * (2 * 16 * 16 * 16) * (8 * 4 * 4)
    assert flops(convolving(F.conv_transpose2d, (2, 16, 16, 16), (16, 8, 4, 4), True, stride=2, padding=1)) == 2 * there


@pytest.mark.parametrize("groups", [1, 4, 8])
def test_groups_divide_the_operations_of_a_convolution_forward_and_backward(groups):
    shapes = (2, 8, 10, 10), (16, 8 // groups, 3, 3)
    whole = 2 * (2 * 16 * 8 * 8) * (8 * 9)
    assert flops(convolving(F.conv2d, *shapes, groups=groups)) == whole // groups
    assert flops(convolving(F.conv2d, *shapes, True, groups=groups)) == 2 * whole // groups


@pytest.mark.parametrize("function", [F.conv2d, F.conv_transpose2d])
def test_an_empty_batch_costs_next_to_nothing(function):
    for backward in (False, True):
        assert seconds(convolving(function, (0, 8, 10, 10), (8, 8, 3, 3), backward)) < 1e-4


def test_a_depthwise_convolution_is_not_slowed_down_by_tensor_cores_that_it_does_not_use():
    shapes, how = ((32, 512, 28, 28), (512, 1, 3, 3)), {"padding": 1, "groups": 512, "dtype": torch.bfloat16}
    last = seconds(convolving(F.conv2d, *shapes, layout=torch.channels_last, **how))
    maps = 2 * 2 * 32 * 512 * 28 * 28
    assert last < 2 * maps / (H100.memory_bytes_per_s * H100.achievable_bandwidth)


def test_pointwise_convolutions_are_hardly_brought_into_another_layout():
    def difference(side):
        shapes, how = ((64, 256, 28, 28), (256, 256, side, side)), {"padding": side // 2, "dtype": torch.bfloat16}
        usual, last = (
            seconds(convolving(F.conv2d, *shapes, layout=layout, **how))
            for layout in (torch.contiguous_format, torch.channels_last)
        )
        return usual - last

    assert difference(1) == pytest.approx(difference(3) / 2)


def norming(training):
    def make():
        x, norm = torch.empty(32, 64, 56, 56), nn.BatchNorm2d(64).train(training)
        return lambda: norm(x)

    return make


def test_batch_norm_reads_once_when_its_statistics_are_known():
    def nbytes(training):
        return max(event.nbytes for event in events(norming(training), "toy"))

    maps = 4 * 32 * 64 * 56 * 56
    assert nbytes(True) == pytest.approx(3 * maps, rel=0.01)
    assert nbytes(False) == pytest.approx(2 * maps, rel=0.01)


def with_gradients(function, *tensors):
    wanted = [one.detach().clone().requires_grad_() for one in tensors]
    out = function(*wanted)
    out.backward(torch.linspace(-1, 1, out.numel(), device="cpu").view(out.shape).to(out.device))
    return [out.detach().cpu(), *(one.grad.cpu() for one in wanted)]


SHAPES = {
    "fewer heads of keys": ((2, 8, 33, 16), (2, 2, 33, 16), (2, 2, 33, 16), {"enable_gqa": True, "is_causal": True}),
    "one head of keys": ((1, 4, 7, 8), (1, 1, 9, 8), (1, 1, 9, 8), {"enable_gqa": True}),
    "narrow values": ((2, 4, 33, 24), (2, 4, 33, 24), (2, 4, 33, 16), {"is_causal": True, "scale": 0.3}),
    "wide values": ((2, 4, 9, 8), (2, 4, 11, 8), (2, 4, 11, 16), {}),
    "both": ((2, 4, 9, 16), (2, 2, 9, 16), (2, 2, 9, 8), {"enable_gqa": True}),
}


@pytest.mark.numeric
@pytest.mark.parametrize("case", SHAPES)
def test_attention_of_every_shape_that_flash_kernels_take_is_one_kernel_with_the_cpus_numbers(case):
    *shapes, options = SHAPES[case]
    torch.manual_seed(0)
    tensors = [torch.randn(shape) for shape in shapes]
    expected = with_gradients(lambda *t: F.scaled_dot_product_attention(*t, **options), *tensors)
    with simgpu.cluster(gpus_per_node=1, gpu="H100"), simgpu.profile() as prof:
        here = [one.to(DEVICE) for one in tensors]
        found = with_gradients(lambda *t: F.scaled_dot_product_attention(*t, **options), *here)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert sum("attention" in event.name for event in prof.events) == 2, "one forward, one backward"


def attending(heads, kv_heads, width, value_width):
    def make():
        q, k, v = (
            torch.empty(1, n, 4096, w, dtype=torch.bfloat16)
            for n, w in ((heads, width), (kv_heads, width), (kv_heads, value_width))
        )
        return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads > kv_heads)

    return make


def test_grouped_queries_and_narrow_values_cost_what_their_products_cost():
    plain = seconds(attending(32, 32, 128, 128))
    assert seconds(attending(32, 8, 128, 128)) == pytest.approx(plain, rel=0.01)
    assert seconds(attending(32, 32, 192, 128)) == pytest.approx(plain * 320 / 256, rel=0.1)


def test_grouped_queries_keep_no_copies_of_keys_and_values():
    with simgpu.cluster(gpus_per_node=1, gpu="H100", numbers=False), torch.device(DEVICE):
        q, k = torch.empty(1, 32, 4096, 128), torch.empty(1, 4, 4096, 128)
        before = torch.simgpu.memory_allocated()
        torch.simgpu.reset_peak_memory_stats()
        out = F.scaled_dot_product_attention(q, k, k, enable_gqa=True)
        assert torch.simgpu.max_memory_allocated() - before < 1.1 * out.nbytes


@pytest.mark.numeric
@pytest.mark.parametrize(
    ("shape", "normed", "weighted"), [((3, 5, 6), (6,), True), ((3, 5, 6), (5, 6), False), ((6,), (6,), True)]
)
def test_rms_norm_is_one_kernel_with_the_cpus_numbers(shape, normed, weighted):
    torch.manual_seed(0)
    tensors = [torch.randn(shape), *([torch.randn(normed)] if weighted else [])]
    expected = with_gradients(lambda x, w=None: F.rms_norm(x, normed, w), *tensors)
    with simgpu.cluster(gpus_per_node=1, gpu="H100"), simgpu.profile() as prof:
        found = with_gradients(lambda x, w=None: F.rms_norm(x, normed, w), *(one.to(DEVICE) for one in tensors))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert [event.name for event in prof.events if "norm" in event.name] == [
        "fused_rms_norm",
        "fused_rms_norm_backward",
    ]


def test_grouped_products_have_the_operations_of_all_groups():
    def make():
        rows, weights = torch.empty(64, 32, dtype=torch.bfloat16), torch.empty(4, 32, 48, dtype=torch.bfloat16)
        ends = torch.empty(4, dtype=torch.int32)
        return lambda: torch._grouped_mm(rows, weights, offs=ends)

    assert flops(make) == 2 * 64 * 32 * 48


def test_a_pipeline_over_nodes_fills_before_it_flows():
    inside, network = NVLINK4.for_collectives(), INFINIBAND_NDR.for_collectives()

    def beyond(nbytes):
        """What it takes besides NCCL's own estimate."""
        arguments = ("all-reduce", nbytes, 2, 8, inside, network, 8)
        fastest = min(one.seconds for one in nccl.ways(*arguments))
        return nccl.choose(*arguments).seconds - fastest - inside.start_s

    small, large, larger = (beyond(2**exponent) for exponent in (16, 26, 30))
    assert 0 <= small < large / 50
    assert large == pytest.approx(larger), "so many bytes and no more"
    assert nccl.choose("all-reduce", 2**20, 1, 8, inside, network, 8).seconds < 60e-6, "nothing inside a node"
