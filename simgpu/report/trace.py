"""A profile as torch.profiler (Kineto) writes it for CUDA and NCCL, for Perfetto and the tools that read such traces.

Every operator of the host has a launch, and every launch an arrow to its kernel. Times are those of the cluster's
clock, which is the same for all ranks. A collective begins when this rank is ready for it, as NCCL's kernel does, and
waits then for the last one: so all ranks' kernels are long but the late one's.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

from simgpu.cluster import Cluster
from simgpu.time.phases import COMMUNICATION, FORWARD, OPTIMIZER
from simgpu.time.work import Work

_COLLECTIVES = {"all-reduce": "AllReduce_Sum", "barrier": "AllReduce_Sum", "reduce-scatter": "ReduceScatter_Sum"}
_COLLECTIVES |= {"reduce": "Reduce_Sum", "all-gather": "AllGather", "broadcast": "Broadcast"}
_COPIES = {"copy to host": "DtoH (Device -> Pageable)", "copy from host": "HtoD (Pageable -> Device)"}


def content(cluster: Cluster, work: list[Work], began: float, elapsed: float) -> dict[str, Any]:
    """What has run in ``elapsed`` simulated seconds since ``began``."""
    ranks = {
        "backend": "nccl",
        "rank": cluster.rank_number,
        "world_size": cluster.world_size if cluster.between_ranks else 1,
    }
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": gpu.index, "name": f"simulated {gpu.model.name}"} for gpu in cluster.own],
        "distributedInfo": ranks,
        "traceEvents": sorted(_events(cluster, work, began, elapsed), key=lambda event: event.get("ts", -1)),
    }


def _events(cluster: Cluster, work: list[Work], began: float, elapsed: float) -> Iterator[dict[str, Any]]:
    rows: dict[Any, tuple[int, int]] = {}  # a stream's are its GPU, and 7 if it is the default one, as in torch
    for gpu in cluster.own:
        rows |= {stream: (gpu.index, 7 + 4 * i) for i, stream in enumerate(gpu.streams)}
    process, numbers = 1000 + cluster.rank_number, itertools.count(1)

    def event(row: Any, kind: str, name: str, start: float, end: float, **args: Any) -> dict[str, Any]:
        pid, tid = rows.setdefault(row, (process, len(rows)))
        place = {"pid": pid, "tid": tid, "ts": round(start * 1e6, 4), "dur": round((end - start) * 1e6, 4)}  # in µs
        return {"ph": "X", "cat": kind, "name": name, "args": args, **place}

    for each in work:
        number, share = next(numbers), each.launch_s / 2 / len(each.queues)  # the driver's half, for each launch
        copies = each.phase == COMMUNICATION and each.name.startswith("copy")
        call, kind = ("cudaMemcpyAsync", "gpu_memcpy") if copies else ("cudaLaunchKernel", "kernel")
        name = f"{'c10d' if each.phase == COMMUNICATION and not copies else 'aten'}::{each.name}"
        ids = {"External id": number}
        yield event(each.lane, "cpu_op", name, each.launched - each.launch_s, each.launched, **ids)
        for i, queue in enumerate(each.queues):
            device, stream = rows.setdefault(queue, (each.gpus[0], 7 + 4 * len(rows)))
            ids = {"External id": number, "correlation": next(numbers) if i else number}
            args = {**_about(each), **ids, "device": device, "stream": stream}
            begin, start = each.launched - share * (len(each.queues) - i), each.start
            launches = event(each.lane, "cuda_runtime", call, begin, begin + 0.8 * share, **ids)
            runs = event(queue, kind, _kernel(each), start if each.ready is None else each.ready, each.end, **args)
            yield from (launches, runs)
            for end, at in (({"ph": "s"}, launches), ({"ph": "f", "bp": "e"}, runs)):
                arrow = {"cat": "ac2g", "name": "ac2g", "id": ids["correlation"], **end}
                yield {**arrow, **{key: at[key] for key in ("pid", "tid", "ts")}}
    steps, last = [began], 0.0  # each ends with the optimizer's
    for each, after in itertools.pairwise(work):
        last = after.launched - after.launch_s if each.phase == OPTIMIZER else last
        if last and after.phase == FORWARD:
            steps, last = [*steps, last], 0.0
    for i, (start, until) in enumerate(itertools.pairwise([*steps, began + elapsed])):
        yield event("host", "user_annotation", f"ProfilerStep#{i}", start, until)
    by_lane = sorted(work, key=lambda each: each.lane)
    for (lane, name), group in itertools.groupby(by_lane, lambda each: (each.lane, each.region)):
        if name:
            named = list(group)
            yield event(lane, "user_annotation", name, named[0].launched - named[0].launch_s, named[-1].launched)
    for pid, name in [(gpu.index, gpu.name) for gpu in cluster.own] + [(process, "host")]:
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"{cluster.prefix}{name}"}}
    for row, (pid, tid) in rows.items():
        name = row if isinstance(row, str) else f"stream {tid}: {row.name}"
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _kernel(work: Work) -> str:
    """The kernel's name. (NCCL's own says LL for every protocol: here it is the one that would be chosen.)"""
    if work.phase != COMMUNICATION:
        return work.name
    if work.name.startswith("copy"):
        return f"Memcpy {_COPIES.get(work.name, 'PtoP (Device -> Device)')}"
    if (kind := _COLLECTIVES.get(work.name)) is None:
        return "ncclDevKernel_SendRecv"
    number = re.sub(r"^(bf|[fiu])[a-z]*", r"\1", work.dtype) if "_" in kind else ""  # bfloat16 is bf16 there
    algorithm, protocol = [*work.how.split(), *("ring", "LL")[len(work.how.split()) :]]
    algorithm = "NVLS" if algorithm == "switch" else algorithm.upper()
    return "_".join(part for part in ("ncclDevKernel", kind, number, algorithm, protocol.upper()) if part)


def _about(work: Work) -> dict[str, Any]:
    """What is known of it beside its times."""
    known = {"phase": work.phase, "bytes": work.nbytes, "flop": work.flops, "how": work.how, "region": work.region}
    return {name: value for name, value in known.items() if value}
