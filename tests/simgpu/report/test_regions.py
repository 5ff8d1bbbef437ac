"""Names given to torch's profiler, names of pipelines' work, and model FLOPs utilisation."""

import pytest
import torch
import torch.distributed as dist
from simgpu_ranks import join
from torch import nn
from torch.profiler import record_function

import simgpu

RANKS, LATE, STEPS = 4, 2, 3


@pytest.fixture(autouse=True)
def no_cluster_stays():
    yield
    simgpu.uninstall()


def test_names_for_torchs_profiler_are_regions():
    simgpu.cluster(gpus_per_node=1, numbers=False)
    x = torch.ones(64, 64, device="simgpu", requires_grad=True)

    @record_function("recursive")
    def twice(x, depth):
        y = twice(x, depth - 1) if depth else x
        return y.relu()

    with simgpu.profile() as prof:
        with record_function("outer"):
            x.sin()
            with torch.autograd.profiler.record_function("inner"):
                x.cos()
                with simgpu.region("ours"):
                    x.neg()
            y = (x @ x).sum()
        with record_function("back"):
            y.backward()
        with pytest.raises(ZeroDivisionError), record_function("broken"):
            x + 1 / 0
        x.tan()
        twice(x, 2)
        x.abs()
    regions = {(event.name, event.region) for event in prof.events}
    named = {("sin", "outer"), ("cos", "inner"), ("neg", "ours"), ("sum", "outer"), ("relu", "recursive")}
    assert named | {("tan", ""), ("abs", "")} <= regions
    assert {event.region for event in prof.events if event.phase == "backward"} == {"back"}
    plain = vars(record_function)["__enter__"]
    simgpu.uninstall()
    assert vars(record_function)["__enter__"] is plain.__wrapped__
    with record_function("without a cluster"):
        torch.ones(1)


def test_what_torch_calls_its_own_machinery_hides_no_name_of_the_program():
    """DataParallel.forward, Optimizer.step#SGD.step and their like."""
    simgpu.cluster(gpus_per_node=2)
    net = nn.DataParallel(nn.Linear(8, 8).to("simgpu:0"))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with simgpu.profile() as prof, simgpu.region("mine"):
        net(torch.ones(4, 8, device="simgpu:0")).sum().backward()
        optimizer.step()
    assert {event.region for event in prof.events} == {"mine"}


def pipeline(name, early):
    """Regions of what each rank computes in a step of one of torch's schedules, and the parameters after it."""
    device = join(gpu="H100")
    if early:  # before the program imports torch's pipelines
        prof = simgpu.profile().__enter__()
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining import schedules as known

    rank, schedule = dist.get_rank(), known.get_schedule_class(name)
    several = issubclass(schedule, known.PipelineScheduleMulti)
    mine = [rank] if not several else [rank, 2 * RANKS - 1 - rank] if "V" in name else [rank, rank + RANKS]
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(8, 8) for _ in range(RANKS * len(mine))])
    stages = [PipelineStage(net[i].to(device), i, len(net), device) for i in mine]
    steps = schedule(stages if several else stages[0], 8, loss_fn=nn.functional.mse_loss)
    x, y = torch.randn(16, 8), torch.randn(16, 8)
    has_loss = len(net) - 1 in mine
    if not early:
        prof = simgpu.profile().__enter__()
    steps.step(*([x.to(device)] if rank == 0 else []), **({"target": y.to(device)} if has_loss else {}))
    prof.__exit__(None, None, None)
    computed = [event.region for event in prof.events if event.name in ("addmm", "mm", "threshold_backward")]
    return mine, computed, {i: net[i].weight.grad.cpu() for i in mine}, whole(net, x, y)


def whole(net, x, y):
    """Gradients of one process."""
    net = nn.Sequential(*[nn.Linear(8, 8) for _ in net]).cpu()
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(8, 8) for _ in net])
    loss = sum(nn.functional.mse_loss(net(a), b) for a, b in zip(x.chunk(8), y.chunk(8), strict=True)) / 8
    loss.backward()
    return [layer.weight.grad for layer in net]


SCHEDULES = ("1F1B", "InterleavedZeroBubble", "DualPipeV")


@pytest.mark.parametrize(("name", "early"), [*((name, False) for name in SCHEDULES), ("1F1B", True)])
def test_torchs_pipelines_name_what_they_do_with_each_micro_batch(world, name, early):
    for mine, computed, gradients, expected in world.run(pipeline, name, early):
        for stage in mine:
            for i in range(8):
                assert f"PP:{stage}F{i}" in computed
                assert f"PP:{stage}B{i}" in computed or f"PP:{stage}W{i}" in computed
                assert (f"PP:{stage}I{i}" in computed) <= (f"PP:{stage}W{i}" in computed)
            assert torch.allclose(gradients[stage], expected[stage], atol=1e-6)
        assert set(computed) - {""} <= {f"PP:{stage}{what}{i}" for stage in mine for what in "FBIW" for i in range(8)}
        split = any(f"PP:{stage}I" in region for region in computed for stage in mine)
        assert split == ("ZeroBubble" in name or name == "DualPipeV")


def test_utilisation_by_hand():
    """The toy GPU multiplies 10^13 numbers a second; two products of 1000 × 1000 × 1000 take 4·10^9 operations."""
    simgpu.cluster(gpus_per_node=2, gpu="toy", launch_s=0, numbers=False)
    x = torch.ones(1000, 1000, device="simgpu:1")
    with simgpu.profile() as prof:
        x @ x
        x @ x
        with pytest.raises(RuntimeError, match="has ended"):
            prof.mfu()
    assert prof.flops == 4 * 10**9
    assert prof.elapsed == pytest.approx(4e-4)
    assert prof.mfu() == pytest.approx(0.5), "one of two GPUs, all the time"
    assert prof.mfu(1e9) == pytest.approx(0.125)
    with simgpu.profile() as prof:
        x + x
    assert prof.flops == 0
    with pytest.raises(RuntimeError, match="counted"):
        prof.mfu(1e9)


def test_each_operation_counts_against_the_peak_of_its_kind_of_number():
    kind = simgpu.gpu("A100")
    simgpu.cluster(gpus_per_node=1, gpu=kind, numbers=False)
    flops = 2 * 2048**3
    seconds = {}
    for dtype, precision, peak in (
        (torch.float32, "highest", "fp32"), (torch.float32, "high", "tf32"), (torch.bfloat16, "highest", "bf16"),
        (torch.float64, "highest", "fp64"),
    ):  # fmt: skip
        x = torch.ones(2048, 2048, device="simgpu", dtype=dtype)
        torch.set_float32_matmul_precision(precision)
        try:
            with simgpu.profile() as prof:
                x @ x
        finally:
            torch.set_float32_matmul_precision("highest")
        seconds[peak] = flops / kind.flops[peak]
        assert prof.mfu() == pytest.approx(seconds[peak] / prof.elapsed)
    single, half = (torch.ones(2048, 2048, device="simgpu", dtype=kind) for kind in (torch.float32, torch.bfloat16))
    with simgpu.profile() as prof:
        single @ single
        half @ half
    assert prof.mfu() == pytest.approx((seconds["fp32"] + seconds["bf16"]) / prof.elapsed)


def test_recomputed_activations_are_the_hardwares_operations_not_the_models():
    simgpu.cluster(gpus_per_node=1, numbers=False)
    with torch.device("simgpu"):
        net, x = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)), torch.ones(64, 512)
    with simgpu.profile() as prof:
        torch.utils.checkpoint.checkpoint(net, x, use_reentrant=False).sum().backward()
    product = 2 * 512 * 512 * 64
    model = 5 * product  # two forward, three backward: nobody needs the gradient of x
    assert prof.flops == model + product, "the first layer once more, for the input of the second"
    assert prof.mfu(model) == pytest.approx(prof.mfu() * model / prof.flops)


def on_a_rank():
    device = join(gpu="toy", numbers=False, launch_s=0)
    x = torch.ones(1000, 1000, device=device)
    with simgpu.profile() as prof:
        for _ in range(dist.get_rank() + 1):
            x @ x
        dist.barrier()
    return prof.flops, prof.mfu() * prof.elapsed


def test_on_ranks_each_counts_its_own_gpu(world):
    for rank, (flops, busy) in enumerate(world.run(on_a_rank)):
        assert flops == 2 * 10**9 * (rank + 1)
        assert busy == pytest.approx(2e-4 * (rank + 1))
