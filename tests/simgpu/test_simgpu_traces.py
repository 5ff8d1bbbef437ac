"""Traces as torch.profiler writes them for CUDA, names given to torch's profiler, and model FLOPs utilisation."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from simgpu_ranks import join
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

import simgpu
from utils.ranks import World

ANALYSIS = Path(sys.prefix) / "traces" / "bin" / "python"
RANKS, LATE, STEPS = 4, 2, 3


@pytest.fixture(scope="module")
def world():
    with World(RANKS, backend="gloo", timeout=200) as world:
        yield world


@pytest.fixture(autouse=True)
def no_cluster_stays():
    yield
    simgpu.uninstall()


# --- Kineto's format ----------------------------------------------------------------------------------------


def training(folder):
    """Three steps of DDP in bfloat16, with a loss that is read, on ranks of which one has a slower GPU."""
    rank = int(os.environ["RANK"])
    kind = simgpu.gpu("H100")
    device = join(gpu=kind.slower(2) if rank == LATE else kind, numbers=False)
    with device:
        net = nn.Sequential(*[nn.Linear(2048, 2048, dtype=torch.bfloat16) for _ in range(4)])
        x = torch.zeros(8192, 2048, dtype=torch.bfloat16)
    net = DistributedDataParallel(net, bucket_cap_mb=10)
    optimizer = torch.optim.AdamW(net.parameters())
    torch.zeros(rank * 100, device=device)
    with simgpu.profile() as prof:
        for i in range(STEPS):
            with record_function(f"batch {i}"):
                optimizer.zero_grad()
                net(x).sum().backward()
                optimizer.step()
        dist.send(x[:1], (rank + 1) % RANKS) if rank % 2 == 0 else dist.recv(x[:1], rank - 1)
        dist.barrier()
    prof.export_trace(f"{folder}/", format="kineto")
    return [event.place for event in prof.events]


@pytest.fixture(scope="module")
def traced(world, tmp_path_factory):
    """The folder with the ranks' files, and the place of all that each rank did."""
    folder = tmp_path_factory.mktemp("kineto") / "traces"
    events = world.run(training, str(folder))
    return folder, events


def read(file):
    return json.loads(Path(file).read_text())["traceEvents"]


def of(events, *kinds):
    return [event for event in events if event.get("cat") in kinds]


def is_whole(events):
    """What tools rely on: each kernel has its launch and its arrow, and nothing ends before it begins."""
    spans = [event for event in events if event["ph"] == "X"]
    assert all(event["dur"] >= 0 for event in spans)
    kernels = {event["args"]["correlation"]: event for event in of(spans, "kernel", "gpu_memcpy")}
    launches = {event["args"]["correlation"]: event for event in of(spans, "cuda_runtime")}
    assert len(kernels) == len(of(spans, "kernel", "gpu_memcpy")), "correlations are unique"
    assert set(kernels) == set(launches) and len(launches) == len(of(spans, "cuda_runtime"))
    operators = {event["args"]["External id"]: event for event in of(spans, "cpu_op")}
    assert len(operators) == len(of(spans, "cpu_op"))
    for number, kernel in kernels.items():
        launch = launches[number]
        operator = operators[launch["args"]["External id"]]
        assert (operator["pid"], operator["tid"]) == (launch["pid"], launch["tid"])
        assert operator["ts"] <= launch["ts"] and ends(launch) <= ends(operator) + 1e-3
        assert kernel["ts"] >= ends(launch) - 1e-3
        assert (kernel["pid"], kernel["tid"]) == (kernel["args"]["device"], kernel["args"]["stream"])
    arrows = defaultdict(dict)
    for event in of(events, "ac2g"):
        arrows[event["id"]][event["ph"]] = tuple(event[key] for key in ("pid", "tid", "ts"))
    assert {number: set(ways) for number, ways in arrows.items()} == {number: {"s", "f"} for number in kernels}
    for number, ways in arrows.items():
        for way, event in (("s", launches[number]), ("f", kernels[number])):
            assert ways[way] == tuple(event[key] for key in ("pid", "tid", "ts"))
    rows = defaultdict(list)
    for kernel in kernels.values():
        rows[kernel["pid"], kernel["tid"]].append(kernel)
    for row in rows.values():
        row.sort(key=lambda kernel: kernel["ts"])
        assert all(ends(a) <= b["ts"] + 1e-3 for a, b in itertools.pairwise(row)), "a stream runs one at a time"
    return list(kernels.values())


def ends(event):
    return event["ts"] + event["dur"]


def test_every_rank_writes_a_whole_trace_into_the_folder(traced):
    folder, recorded = traced
    assert sorted(file.name for file in folder.iterdir()) == [f"rank{rank}.json" for rank in range(RANKS)]
    for rank in range(RANKS):
        content = json.loads((folder / f"rank{rank}.json").read_text())
        assert content["distributedInfo"] == {"backend": "nccl", "rank": rank, "world_size": RANKS}
        assert [device["id"] for device in content["deviceProperties"]] == [rank]
        assert "simulated" in content["deviceProperties"][0]["name"]
        kernels = is_whole(content["traceEvents"])
        assert len(kernels) == len(recorded[rank]) and {kernel["pid"] for kernel in kernels} == {rank}
        names = Counter(kernel["name"] for kernel in kernels if kernel["name"].startswith("nccl"))
        assert names["ncclDevKernel_SendRecv"] == 1
        assert any(name.startswith("ncclDevKernel_AllReduce_Sum_bf16_") for name in names), names
        assert sum(names.values()) == sum(place.startswith("rank") for place in recorded[rank])


def test_steps_end_with_the_optimizers_and_names_given_to_the_profiler_are_annotations(traced):
    folder, _ = traced
    for rank in range(RANKS):
        named = of(read(folder / f"rank{rank}.json"), "user_annotation")
        steps = sorted((e for e in named if e["name"].startswith("ProfilerStep#")), key=lambda e: e["ts"])
        assert [step["name"] for step in steps] == [f"ProfilerStep#{i}" for i in range(len(steps))]
        assert len(steps) == STEPS
        main = [e for e in named if e["name"].startswith("batch") and e["tid"] == steps[0]["tid"]]
        for i, step in enumerate(steps[:STEPS]):
            inside = {e["name"] for e in main if step["ts"] <= e["ts"] + 1e-3 < ends(step)}
            assert inside == {f"batch {i}"}


def test_a_late_rank_shows_as_it_does_under_nccl_all_others_kernels_are_long(traced):
    folder, _ = traced
    long, until = [], []
    for rank in range(RANKS):
        reduced = [e for e in of(read(folder / f"rank{rank}.json"), "kernel") if "AllReduce_Sum_bf16" in e["name"]]
        long.append(sum(event["dur"] for event in reduced))
        until.append([ends(event) for event in reduced])
    assert all(long[rank] > 3 * long[LATE] for rank in range(RANKS) if rank != LATE), long
    for other in until[1:]:
        assert other == pytest.approx(until[0], abs=1e-3), "one clock: a collective ends on all ranks at once"


def test_one_process_with_several_gpus_has_a_kernel_on_each_gpu_of_a_collective(tmp_path):
    simgpu.cluster(gpus_per_node=4, gpu="H100")
    parts = [torch.ones(1 << 16, device=f"simgpu:{i}") for i in range(4)]
    with simgpu.profile() as prof:
        handle = simgpu.all_reduce(parts, async_op=True)
        (parts[0] @ parts[0]).item()
        handle.wait()
        parts[1].to("simgpu:2")
        simgpu.all_gather(parts)
    prof.export_trace(tmp_path / "all.json", format="kineto")
    kernels = is_whole(read(tmp_path / "all.json"))
    for word in ("AllReduce_Sum_f32", "AllGather_"):
        assert {kernel["pid"] for kernel in kernels if word in kernel["name"]} == {0, 1, 2, 3}
    copies = {kernel["name"] for kernel in kernels if kernel["cat"] == "gpu_memcpy"}
    assert copies == {"Memcpy DtoH (Device -> Pageable)", "Memcpy PtoP (Device -> Device)"}
    assert sum(e["name"] == "cudaMemcpyAsync" for e in read(tmp_path / "all.json")) == 2


def test_a_host_that_launches_in_no_time_and_links_without_nccls_figures_give_a_whole_trace_too(tmp_path):
    simgpu.cluster(gpus_per_node=2, gpu="toy", launch_s=0)
    parts = [torch.ones(1 << 16, device=f"simgpu:{i}") for i in range(2)]
    with simgpu.profile() as prof:
        simgpu.all_reduce(parts)
    prof.export_trace(tmp_path / "{rank}.json", format="kineto")
    assert {kernel["name"] for kernel in is_whole(read(tmp_path / "0.json"))} == {
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    }


def test_where_a_trace_goes_and_which_formats_there_are(tmp_path):
    simgpu.cluster(gpus_per_node=1)
    with simgpu.profile() as prof:
        torch.ones(4, device="simgpu")
    prof.export_trace(tmp_path)
    prof.export_trace(f"{tmp_path}/new/folder/")
    prof.export_trace(f"{tmp_path}/{{rank}}.json")
    files = {file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*.json")}
    assert files == {"rank0.json", "new/folder/rank0.json", "0.json"}
    assert "otherData" in json.loads((tmp_path / "0.json").read_text()), "the first format stays the usual one"
    with pytest.raises(ValueError, match='"perfetto" or "kineto", not \'chrome\''):
        prof.export_trace(tmp_path / "x.json", format="chrome")
    assert not (tmp_path / "x.json").exists()


QUESTIONS = """
import json, sys, warnings
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
if __name__ == "__main__":
    analysis = TraceAnalysis(trace_dir=sys.argv[1])
    kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=20)
    reduced = kernels[kernels["name"].str.contains("AllReduce_Sum_bf16")]
    print(json.dumps({
        "ranks": sorted(int(rank) for rank in analysis.t.traces),
        "kinds": sorted(kinds["kernel_type"]),
        "reduced": {int(rank): float(us) for rank, us in zip(reduced["rank"], reduced["sum (us)"])},
        "idle": [float(percent) for percent in analysis.get_temporal_breakdown(visualize=False)["idle_time_pctg"]],
        "overlap": [float(p) for p in analysis.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"]],
        "launches": {int(r): len(one) for r, one in analysis.get_cuda_kernel_launch_stats(visualize=False).items()},
    }))
"""


@pytest.mark.nightly
@pytest.mark.skipif(not ANALYSIS.exists(), reason="HolisticTraceAnalysis is not here: make nightly installs it")
def test_holistic_trace_analysis_reads_it_and_finds_the_late_rank(traced):
    folder, _ = traced
    done = subprocess.run([ANALYSIS, "-c", QUESTIONS, folder], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ranks"] == list(range(RANKS))
    assert {"COMMUNICATION", "COMPUTATION"} <= set(found["kinds"])
    assert min(found["reduced"], key=lambda rank: found["reduced"][rank]) == str(LATE)
    assert all(0 <= percent < 100 for percent in found["idle"]) and all(percent > 0 for percent in found["overlap"])
    assert all(found["launches"].values())


# --- Names --------------------------------------------------------------------------------------------------


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


SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "DualPipeV")


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


# --- Model FLOPs utilisation ---------------------------------------------------------------------------------


def test_utilisation_by_hand():
    """The toy GPU multiplies 10^13 numbers a second; two products of 1000 × 1000 × 1000 take 4·10^9 operations."""
    simgpu.cluster(gpus_per_node=2, gpu="toy", launch_s=0, numbers=False)
    x = torch.ones(1000, 1000, device="simgpu:1")
    with simgpu.profile() as prof:
        x @ x
        x @ x
        with pytest.raises(RuntimeError, match="has ended"):
            prof.mfu()
    assert prof.flops == 4 * 10**9 and prof.flops_by_gpu == {0: 0, 1: 4 * 10**9}
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
    return prof.flops, prof.flops_by_gpu, prof.mfu() * prof.elapsed


def test_on_ranks_each_counts_its_own_gpu(world):
    for rank, (flops, by_gpu, busy) in enumerate(world.run(on_a_rank)):
        assert flops == 2 * 10**9 * (rank + 1) and by_gpu == {rank: flops}
        assert busy == pytest.approx(2e-4 * (rank + 1))
