"""``torch.simgpu`` and torch.accelerator: streams, events, memory, random numbers, and what a simulated GPU has not."""

import pytest
import torch
from torch import nn

import simgpu

GPU = "simgpu:1"


@pytest.fixture(autouse=True)
def _cluster() -> None:
    simgpu.cluster(gpus_per_node=3)


def test_streams_and_events_of_any_device() -> None:
    device, accelerator = torch.device(GPU), torch.accelerator
    stream = torch.Stream(device)
    assert isinstance(stream, torch.Stream) and isinstance(stream, torch.simgpu.Stream) and stream.device == device
    start, end = (torch.Event(device, enable_timing=True) for _ in range(2))
    stream.wait_stream(accelerator.current_stream(device))
    with stream:
        assert accelerator.current_stream(device) is stream
        start.record()
        x = torch.ones(100, 100, device=device) @ torch.ones(100, 100, device=device)
        end.record()
    x.record_stream(stream)
    accelerator.current_stream(device).wait_stream(stream)
    end.synchronize()
    assert start.elapsed_time(end) > 0 and isinstance(start, torch.Event)
    simgpu.uninstall()
    assert torch.Stream.__module__ == "torch" and not hasattr(torch, "simgpu")


def test_what_a_program_asks_of_its_gpu() -> None:
    gpu = torch.simgpu
    properties = gpu.get_device_properties(GPU)
    assert (properties.major, properties.minor) == gpu.get_device_capability(1) == (9, 0)
    assert properties.multi_processor_count == 132
    with gpu.device_of(torch.ones(1, device=GPU)):
        assert gpu.current_device() == 1
    with gpu.StreamContext(gpu.Stream(1)) as stream:
        assert gpu.current_stream(1) is stream
    assert not gpu.is_current_stream_capturing() and gpu.ipc_collect() is gpu.init() is None


def test_all_states_of_random_numbers_come_back() -> None:
    torch.manual_seed(5)
    assert torch.simgpu.initial_seed() == torch.initial_seed() == 5
    torch.rand(3, device=GPU)
    states = torch.simgpu.get_rng_state_all()
    drawn = [torch.rand(3, device=f"simgpu:{i}").tolist() for i in range(2)]
    torch.simgpu.set_rng_state_all(states)
    assert [torch.rand(3, device=f"simgpu:{i}").tolist() for i in range(2)] == drawn
    torch.simgpu.seed_all()
    assert [torch.rand(3, device=f"simgpu:{i}").tolist() for i in range(2)] != drawn


INSTEAD = {
    "cuda.Stream": (lambda x: torch.cuda.Stream(), "write 'simgpu'.* and torch.simgpu for torch.cuda"),
    "cuda.Event": (lambda x: torch.cuda.Event().record(), "write 'simgpu'.* and torch.simgpu for torch.cuda"),
    "cuda.ExternalStream": (lambda x: torch.cuda.ExternalStream(0), "torch.simgpu for torch.cuda"),
    "cuda.set_stream": (lambda x: torch.cuda.set_stream(torch.simgpu.Stream()), "torch.simgpu for torch.cuda"),
    "cuda.device": (lambda x: torch.cuda.device(0).__enter__(), "torch.simgpu for torch.cuda"),
    "cuda.get_rng_state": (lambda x: torch.cuda.get_rng_state(), "torch.simgpu for torch.cuda"),
    "cuda()": (lambda x: x.cuda(), "write 'simgpu'.* and torch.simgpu for torch.cuda"),
    "jit.script": (lambda x: torch.jit.script(nn.Linear(3, 2)).to(GPU), "move the module there first"),
    "export": (lambda x: torch.export.export(nn.Linear(3, 2).to(GPU), (x,)), "trace the model while it is on the CPU"),
    "make_fx": (
        lambda x: torch.fx.experimental.proxy_tensor.make_fx(lambda t: t + 1)(x),
        "trace the model while it is on the CPU",
    ),
    "fake": (lambda x: torch._subclasses.FakeTensorMode().from_tensor(x), "trace the model while it is on the CPU"),
}


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there are real GPUs")
@pytest.mark.parametrize(("use", "sentence"), INSTEAD.values(), ids=INSTEAD)
def test_what_does_not_work_says_what_to_do(use, sentence) -> None:
    with pytest.raises((RuntimeError, NotImplementedError), match=sentence):
        use(torch.ones(4, 3, device=GPU))


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


def test_what_a_simulated_gpu_has_not_is_told_in_a_sentence() -> None:
    with pytest.raises(AttributeError, match=r"^torch.simgpu has no CUDAGraph: it says nothing of a simulated GPU, so"):
        torch.simgpu.CUDAGraph()
    with pytest.raises(AttributeError, match=r"^torch.simgpu has no sinchronize$"):
        torch.simgpu.sinchronize()
    assert not hasattr(torch.simgpu, "nvtx")
