"""Collectives over simulated GPUs, for tensors of one process: a list with one tensor for each GPU.

They compute the result at once. Their time is that of the algorithm that NCCL would choose (``simgpu.time.nccl``); over
links of which NCCL's latencies are not known (the toy's), the textbook's (``utils.hardware.links``). They run on each
GPU's communication stream, as NCCL's do, so with ``async_op=True`` they overlap with computing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from simgpu.cluster import Cluster, current
from simgpu.hardware import GPU
from simgpu.tensors.tensor import SimTensor, check_cluster, new
from simgpu.time import happens_before, nccl
from simgpu.time.phases import COMMUNICATION
from simgpu.time.work import Port, Share, Work
from utils.hardware import links
from utils.hardware.links import Link


@dataclass
class Handle:
    """A collective that is under way. ``wait`` makes the GPUs' current streams wait for it (the host goes on)."""

    work: Work

    def wait(self) -> None:
        """Work that is launched on these GPUs after this begins only when the collective is done."""
        cluster, work = current(), self.work
        streams = [cluster.current_stream(gpu) for gpu in work.gpus]
        for stream in streams:
            happens_before.stream_waits(stream, work.order)
        cluster.clock.act(lambda _: [stream.reach(work.end) for stream in streams], work.gpus[0])


def all_reduce(tensors: Sequence[torch.Tensor], op: str = "sum", async_op: bool = False) -> Handle:
    """Every GPU gets the sum (or mean) of all tensors, in place.

    Args:
        tensors: one for each GPU, with equal shapes.
        op: "sum", "mean" or "max".
        async_op: do not make the GPUs' streams wait; call ``wait()`` on what is returned.
    """
    checked = _check(tensors, "all_reduce")
    result = _reduced(checked, op)
    for tensor in checked:
        tensor.raw.copy_(result)
    torch.autograd.graph.increment_version(checked)  # so that backward notices the change
    return _run("all-reduce", checked, checked[0].nbytes, checked, async_op)


def reduce_scatter(tensors: Sequence[torch.Tensor], op: str = "sum", async_op: bool = False) -> list[SimTensor]:
    """GPU i gets part i of the sum: its rows ``i·n/p … (i+1)·n/p``.

    Args:
        tensors: one for each of p GPUs, with equal shapes; the first dimension must be a multiple of p.
    """
    checked = _check(tensors, "reduce_scatter")
    rows, ranks = checked[0].shape[0], len(checked)
    if rows % ranks:
        raise ValueError(
            f"reduce_scatter over {ranks} GPUs needs rows that divide by {ranks}, not {rows}: pad the tensor"
        )
    parts = _reduced(checked, op).chunk(ranks)
    cluster = current()
    outputs = [new(part.clone(), cluster.gpus[t.gpu]) for part, t in zip(parts, checked, strict=True)]
    _run("reduce-scatter", checked, checked[0].nbytes, outputs, async_op)
    return outputs


def all_gather(tensors: Sequence[torch.Tensor], async_op: bool = False) -> list[SimTensor]:
    """Every GPU gets all tensors, one below the other along the first dimension."""
    checked = _check(tensors, "all_gather")
    cluster = current()
    whole = torch.cat([tensor.raw for tensor in checked])
    outputs = [new(whole.clone(), cluster.gpus[tensor.gpu]) for tensor in checked]
    _run("all-gather", checked, outputs[0].nbytes, outputs, async_op)
    return outputs


def broadcast(tensors: Sequence[torch.Tensor], source: int = 0, async_op: bool = False) -> Handle:
    """Every GPU's tensor becomes a copy of ``tensors[source]``, in place."""
    checked = _check(tensors, "broadcast")
    for tensor in checked:
        if tensor is not checked[source]:
            tensor.raw.copy_(checked[source].raw)
            torch.autograd.graph.increment_version(tensor)
    return _run("broadcast", checked, checked[0].nbytes, checked, async_op)


def _check(tensors: Sequence[torch.Tensor], name: str) -> list[SimTensor]:
    given = list(tensors)
    simulated = [tensor for tensor in given if isinstance(tensor, SimTensor)]
    if not given or len(simulated) < len(given):
        raise ValueError(f"{name} takes a list with one tensor for each simulated GPU, at least one")
    gpus = [tensor.gpu for tensor in simulated]
    if len(set(gpus)) < len(gpus):
        raise ValueError(f"{name} takes one tensor for each GPU, but GPU {max(set(gpus), key=gpus.count)} has several")
    first = simulated[0]
    for tensor in simulated:
        check_cluster(tensor)
        if tensor.shape != first.shape or tensor.dtype is not first.dtype:
            raise ValueError(
                f"{name} needs equal shapes and types on all GPUs, but GPU {gpus[0]} has {tuple(first.shape)} "
                f"{first.dtype} and GPU {tensor.gpu} has {tuple(tensor.shape)} {tensor.dtype}"
            )
    return simulated


def _reduced(tensors: list[SimTensor], op: str) -> torch.Tensor:
    if op not in ("sum", "mean", "max"):
        raise ValueError(f'op must be "sum", "mean" or "max", not {op!r}')
    result = tensors[0].raw.detach().clone()
    for tensor in tensors[1:]:
        torch.maximum(result, tensor.raw, out=result) if op == "max" else result.add_(tensor.raw)
    return result.div_(len(tensors)) if op == "mean" else result


def _run(name: str, tensors: list[SimTensor], nbytes: int, outputs: list, async_op: bool) -> Handle:
    gpus = [tensor.gpu for tensor in tensors]
    return Handle(launch_collective(name, gpus, nbytes, tensors, outputs, async_op))


def choice(cluster: Cluster, name: str, ranks: int, nodes: int, nbytes: int, cards: float) -> nccl.Choice:
    """How long a collective takes, and with which algorithm and protocol of NCCL.

    Args:
        name: "all-reduce", "reduce-scatter", "all-gather", "broadcast" or "reduce".
        ranks, nodes: GPUs that take part, equally many on each of so many nodes.
        nbytes: size of the whole tensor, in bytes.
        cards: network cards of each node that it has.
    """
    if ranks == 1:
        return nccl.Choice("", "", 0.0)
    per_node = math.ceil(ranks / nodes)
    inside, network = cluster.inside.for_collectives(), cluster.network.for_collectives()
    if cards < 1:  # a part of one
        network, cards = network.shared_by(1 / cards), 1
    if inside.family and (nodes == 1 or network.family):
        return nccl.choose(name, nbytes, nodes, per_node, inside, network, cards)
    return nccl.Choice("ring", "", _textbook(name, ranks, nodes, nbytes, inside, network, cards))


def share(
    cluster: Cluster, model: GPU, chosen: nccl.Choice, nodes: int, cards: float, nbytes: float, traffic: float
) -> Share | None:
    """What a collective takes of each GPU while it runs. None: nothing, or nothing that is known.

    Args:
        nodes, cards: that take part, and network cards of each.
        nbytes: size of the whole tensor.
        traffic: bytes that the GPU reads and writes in its memory.
    """
    if not (cluster.sharing and cluster.inside.family and model.multiprocessors and chosen.seconds):
        return None
    blocks = nccl.channels(chosen.algorithm, nbytes, nodes, cluster.inside, cluster.network, cards)
    reached = model.memory_bytes_per_s * model.achievable_bandwidth
    return Share(blocks / model.multiprocessors, traffic / chosen.seconds / reached)


def _textbook(name: str, ranks: int, nodes: int, nbytes: int, inside: Link, network: Link, cards: float) -> float:
    """A ring, in levels if there are several nodes with several GPUs."""
    per_node = math.ceil(ranks / nodes)
    if name in ("broadcast", "reduce"):  # a chain of GPUs that pass on small pieces
        slowest = inside if nodes == 1 else network
        return (ranks - 1) * slowest.alpha_s + nbytes * slowest.beta_s_per_byte
    halves = 1 if name == "all-reduce" else 2  # reduce-scatter and all-gather are one half of an all-reduce
    if nodes > 1 and per_node > 1:
        return links.hierarchical_all_reduce(nbytes, nodes, per_node, inside, network, cards) / halves
    return links.flat_ring_all_reduce(nbytes, nodes, per_node, inside, network) / halves


def launch_collective(
    name: str,
    gpus: Sequence[int],
    nbytes: int,
    inputs: Sequence[SimTensor],
    outputs: Sequence[SimTensor],
    async_op: bool = False,
) -> Work:
    """Put a collective on the timeline of its GPUs, which waits for their streams; ``outputs`` are written."""
    cluster = current()
    members = [cluster.gpus[gpu] for gpu in gpus]
    nodes = {gpu.node for gpu in members}
    ports: list[Port] = []
    if len(members) > 1:
        ports += [port for gpu in members for port in (gpu.peer_out, gpu.peer_in)]
    if len(nodes) > 1:
        ports += [port for node in nodes for port in (*cluster.network_out[node], *cluster.network_in[node])]
    streams = tuple(cluster.current_stream(gpu) for gpu in gpus)
    cards = min(cluster.nics_per_node, math.ceil(len(gpus) / len(nodes)))
    chosen = choice(cluster, name, len(gpus), len(nodes), nbytes, cards)
    traffic = nccl.memory_traffic(name, chosen.algorithm, nbytes, len(gpus))
    work = Work(
        name=name,
        phase=COMMUNICATION,
        place="collective",
        seconds=chosen.seconds,
        gpus=tuple(gpus),
        queues=tuple(gpu.communication_stream for gpu in members),
        followers=() if async_op else streams,
        ports=tuple(ports),
        nbytes=nbytes,
        dtype=str(inputs[0].dtype).removeprefix("torch."),
        how=chosen.name,
        share=share(cluster, members[0].model, chosen, len(nodes), cards, nbytes, traffic),
        shared=tuple(gpu.sharing for gpu in members),
    )
    cluster.clock.put(work, [tensor.allocation.last_write for tensor in inputs])
    for tensor in outputs:
        tensor.allocation.last_write = work
    happens_before.launched(work, inputs, outputs, after=streams, waited="wait()" if async_op else "stream")
    return work
