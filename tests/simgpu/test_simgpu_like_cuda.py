"""What programs for CUDA commonly use besides operators, and what must work as on any other device."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parallel._functions import Broadcast

import simgpu


@pytest.fixture(autouse=True)
def _cluster() -> None:
    simgpu.cluster(gpus_per_node=3)


def test_a_stream_keeps_its_priority_within_the_range() -> None:
    least, greatest = torch.simgpu.Stream.priority_range()
    assert greatest < least == simgpu.Stream(1).priority
    assert simgpu.Stream(priority=-1).priority == -1
    assert torch.simgpu.Stream("simgpu:2", priority=-100).priority == greatest
    assert simgpu.Stream(priority=3).priority == least


def test_events_measure_only_what_has_been_recorded_with_timing_and_is_done() -> None:
    start, end = (torch.simgpu.Event(enable_timing=True) for _ in range(2))
    with pytest.raises(ValueError, match="must be recorded"):
        start.elapsed_time(end)
    start.record()
    x = torch.ones(1000, 1000, device="simgpu:0")
    for _ in range(10):
        x = x @ x
    end.record()
    with pytest.raises(RuntimeError, match="must be completed"):
        start.elapsed_time(end)
    torch.simgpu.synchronize()
    assert start.elapsed_time(end) > 0
    plain = torch.simgpu.Event(blocking=True, interprocess=False)
    plain.record()
    with pytest.raises(ValueError, match="enable_timing=True"):
        plain.elapsed_time(end)


def test_figures_of_memory() -> None:
    x = torch.ones(1000, device="simgpu:1")  # 4,096 bytes in blocks of 512
    del x
    y = torch.ones(100, device="simgpu:1")
    stats = torch.simgpu.memory_stats(1)
    assert stats["allocated_bytes.all.current"] == torch.simgpu.memory_allocated("simgpu:1") == 512
    assert stats["allocated_bytes.all.peak"] == torch.simgpu.max_memory_allocated(1) == 4096
    assert (stats["allocated_bytes.all.allocated"], stats["allocated_bytes.all.freed"]) == (4096 + 512, 4096)
    assert stats["reserved_bytes.all.current"] == torch.simgpu.memory_reserved(1) == 2 * 2**20  # a small segment
    torch.simgpu.reset_peak_memory_stats(1)
    assert torch.simgpu.memory_stats(1)["allocated_bytes.all.peak"] == 512
    free, total = torch.simgpu.mem_get_info(1)
    assert (free, total) == (total - 512, torch.simgpu.get_device_properties(1).total_memory)
    assert torch.simgpu.memory_stats(0)["allocated_bytes.all.allocated"] == 0
    del y


def test_a_generator_of_a_gpu_gives_the_same_numbers_for_the_same_seed() -> None:
    def drawn(device: str) -> list[float]:
        generator = torch.Generator(device=device).manual_seed(5)
        assert isinstance(generator, torch.Generator) and generator.device == torch.device(device)
        return torch.randn(4, device=device, generator=generator).tolist()

    assert drawn("simgpu:1") == drawn("simgpu:1") == drawn("cpu")
    assert isinstance(torch.default_generator, torch.Generator)
    with pytest.raises(RuntimeError, match="does not exist"):
        torch.Generator(device="simgpu:3")


WRITES = {
    "add_": lambda x: x.add_(1),
    "copy_ from the host": lambda x: x.copy_(torch.zeros(3, 3)),
    "one row": lambda x: x.__setitem__(0, 5),
    "a view": lambda x: x[0].add_(1),
    "a view of a view": lambda x: x.view(-1)[2:4].zero_(),
    "transposed": lambda x: x.t_()[0].mul_(3),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_an_ordinary_tensor_can_be_written_under_inference_mode(write) -> None:
    def changed(device: str) -> torch.Tensor:
        x = torch.arange(9.0, device=device).view(3, 3).clone()
        with torch.inference_mode():
            write(x)
        return (x.requires_grad_() * x).sum()  # it is still one that autograd can use

    there = changed("simgpu:1")
    there.backward()
    assert there.item() == changed("cpu").item()


def test_batch_norm_keeps_its_statistics_under_inference_mode() -> None:
    norm = nn.BatchNorm1d(3).to("simgpu:1")
    with torch.inference_mode():
        norm(torch.ones(4, 3, device="simgpu:1"))
    assert norm.running_mean.tolist() == pytest.approx([0.1] * 3)


@pytest.mark.parametrize("home", ["cpu", "simgpu:0"])
def test_rows_and_targets_pick_from_shapes_alone(home: str) -> None:
    simgpu.cluster(gpus_per_node=2, numbers=False)
    logits = torch.randn(4, 5, device="simgpu:0", requires_grad=True)
    rows, targets = torch.arange(4, device=home), torch.randint(5, (4,), device=home)
    picked = logits.log_softmax(-1)[rows, targets]
    (-picked.mean()).backward()
    assert picked.shape == (4,) and logits.grad.shape == (4, 5)
    with pytest.raises(RuntimeError, match="numbers=True"):
        logits[logits > 0]  # how many are there? nobody knows


def test_picking_by_numbers_lets_the_host_go_on_and_picking_by_a_mask_does_not() -> None:
    x, rows = torch.ones(1000, 1000, device="simgpu:0"), torch.arange(10, device="simgpu:0")
    mask = torch.ones(1000, dtype=torch.bool, device="simgpu:0")
    for index, waits in ((rows, False), (mask, True)):
        torch.simgpu.synchronize()
        for _ in range(10):
            x = x @ x
        x[index]
        done = simgpu.Event()
        done.record()
        assert done.query() == waits


@pytest.mark.parametrize("root", [0, 1, 2])
@pytest.mark.parametrize("replica", [0, 1, 2])
def test_backward_through_one_replica_alone(root: int, replica: int) -> None:
    weight = torch.arange(3.0, device=f"simgpu:{root}").requires_grad_()
    copies = Broadcast.apply([root, *({0, 1, 2} - {root})], weight)
    (copies[replica] * 2).sum().backward()
    assert weight.grad.device == weight.device and weight.grad.tolist() == [2.0] * 3


@pytest.mark.parametrize(
    "write", [lambda there, x: there[1:5].copy_(x), lambda there, x: there.__setitem__(slice(1, 5), x)]
)
def test_a_gradient_finds_the_way_back_from_where_a_tensor_was_written_on_another_gpu(write):
    simgpu.cluster(gpus_per_node=3)
    for home in ("simgpu:1", "cpu"):
        x = torch.arange(4.0).to(home).requires_grad_()
        there = torch.zeros(6, device="simgpu:2")
        write(there, x * 2)
        (there * torch.arange(6.0, device="simgpu:2")).sum().backward()
        assert str(x.grad.device) == home
        assert x.grad.tolist() == [2.0, 4.0, 6.0, 8.0]


def test_a_gradient_finds_the_way_back_from_a_single_number_that_was_copied_to_another_gpu():
    simgpu.cluster(gpus_per_node=3)
    x = torch.tensor(2.0, device="simgpu:1").requires_grad_()
    torch.empty_like(x, device="simgpu:2", requires_grad=False).copy_(x).square().backward()
    assert x.grad.device == x.device and x.grad.item() == 4.0


def test_what_a_simulated_gpu_has_not_is_told_in_a_sentence() -> None:
    with pytest.raises(AttributeError, match=r"^torch.simgpu has no CUDAGraph: it says nothing of a simulated GPU, so"):
        torch.simgpu.CUDAGraph()
    with pytest.raises(AttributeError, match=r"^torch.simgpu has no sinchronize$"):
        torch.simgpu.sinchronize()
    assert not hasattr(torch.simgpu, "nvtx")
