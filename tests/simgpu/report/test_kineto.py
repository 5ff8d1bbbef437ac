"""Traces as torch.profiler writes them for CUDA."""

import itertools
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from simgpu_ranks import join
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

import simgpu

ANALYSIS = Path(sys.prefix) / "traces" / "bin" / "python"

RANKS, LATE, STEPS = 4, 2, 3


@pytest.fixture(autouse=True)
def no_cluster_stays():
    yield
    simgpu.uninstall()


def training(folder):
    """Three steps of DDP in bfloat16, with a loss that is read, on ranks of which one has a slower GPU."""
    rank = int(os.environ["RANK"])
    kind = simgpu.gpu("H100")
    if rank == LATE:
        rates = {number: rate / 2 for number, rate in kind.flops.items()}
        kind = replace(kind, flops=rates, memory_bytes_per_s=kind.memory_bytes_per_s / 2)
    device = join(gpu=kind, numbers=False)
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


def test_where_a_trace_goes_and_that_there_is_one_format(tmp_path):
    simgpu.cluster(gpus_per_node=1)
    with simgpu.profile() as prof:
        torch.ones(4, device="simgpu")
    prof.export_trace(tmp_path)
    prof.export_trace(f"{tmp_path}/new/folder/")
    prof.export_trace(f"{tmp_path}/{{rank}}.json")
    files = {file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*.json")}
    assert files == {"rank0.json", "new/folder/rank0.json", "0.json"}
    with pytest.raises(ValueError, match=r"which ui\.perfetto\.dev reads too, not 'chrome'"):
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
