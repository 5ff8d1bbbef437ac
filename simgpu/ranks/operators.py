"""The collectives of c10d on simulated tensors.

Every one of them goes through torch's dispatcher, so a ``SimTensor`` sees ``c10d::allreduce_`` and its kin before a
backend is chosen. There the ranks agree on when it begins, gloo moves the numbers, and it gets its place in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.distributed import ProcessGroup, ReduceOp
from torch.distributed import distributed_c10d as c10d

from simgpu._torch import AsyncCollectiveTensor, all_gather_base, group_named, packet_of, reduce_scatter_base, schema_of
from simgpu.ranks import messages, movement
from simgpu.ranks.cluster import Members, RankCluster, few, here
from simgpu.ranks.issue import NEVER, Issue, exchange_seconds, links_free, meet, take_links
from simgpu.ranks.sizes import COLLECTIVES, EXCHANGES, Sizes, look
from simgpu.ranks.works import SimWork, stream_waits
from simgpu.tensors import known
from simgpu.tensors.collectives import choice, share
from simgpu.tensors.schemas import operator_of, tensors_in
from simgpu.tensors.tensor import SimTensor, check_cluster, new
from simgpu.time.nccl import Choice, memory_traffic

BARRIER = 4
"""Bytes of the all-reduce that a barrier is under NCCL."""


def run(func: Any, args: tuple, kwargs: dict) -> Any:
    """An operator of the namespace c10d has met a simulated tensor."""
    packet = packet_of(func).__name__
    if packet == "check_for_nan":
        return None
    values = operator_of(func).values(args, kwargs)
    group = values["process_group"]
    group = ProcessGroup.unbox(group) if isinstance(group, torch.ScriptObject) else group
    if packet == "recv_any_source_":
        raise RuntimeError("dist.recv from any source does not work on simulated ranks, nor under NCCL: name the src")
    if packet in ("send", "recv_"):
        (tensor,) = values["tensors"]
        _check(packet.strip("_"), tensor)
        peer = values["dst"] if packet == "send" else values["src"]
        return messages.issue(packet == "send", tensor, group, peer, values["tag"]).boxed()
    try:
        work = collective(packet, values, group).boxed()
    except BaseException:
        _let_interrupts_in()
        raise
    returns = len(schema_of(func).returns)
    return (values[COLLECTIVES[packet].writes], work) if returns == 2 else work if returns else None


def _let_interrupts_in() -> None:
    """Python handles a signal at the next call of a function: here, rather than in ``backward.device_guard``.

    There it would end the process. A rank that waits for one that has failed gets an interrupt, and then its
    connections are cut.
    """


def collective(packet: str, values: dict[str, Any], group: ProcessGroup) -> SimWork:
    """Issue a collective; return what stands for it."""
    cluster = here()
    name, reads, writes, *_ = COLLECTIVES[packet]
    inputs, outputs = tensors_in(values[reads]), tensors_in(values[writes])
    members = cluster.members_of(group)
    try:
        for tensor in (*inputs, *outputs):
            _check(name, tensor)
        sizes, mistake = look(packet, values, members), None
    except (RuntimeError, TypeError, ValueError) as error:
        sizes, mistake = Sizes(str(error)), error
    if mistake is not None:
        meet(group, sizes, NEVER, 0.0)  # the others are told, too, unless all make the same mistake
        raise mistake
    asynchronous = bool(values.get("async_op", True)) and name != "barrier"
    stream = cluster.stream_of(group.group_name) if asynchronous else cluster.current_stream()
    issue = Issue(name, stream, inputs, outputs, links_free(cluster, members))
    nbytes = max(sum(tensor.nbytes for tensor in inputs), sum(tensor.nbytes for tensor in outputs))
    if name in EXCHANGES:
        itemsize = (inputs or outputs)[0].itemsize
        sent, received = ([n * itemsize for n in each] for each in (sizes.given, sizes.expected))
        chosen = Choice("", "", exchange_seconds(cluster, members, sent, received))
        traffic = sum(sent) + sum(received)
    else:
        kind, size = ("all-reduce", BARRIER) if name == "barrier" else (name, nbytes)
        chosen = choice(cluster, kind, members.size, members.nodes, size, members.cards)
        traffic = memory_traffic(name, chosen.algorithm, nbytes, members.size)
    small = all(map(known.may_be, outputs))
    moves = cluster.numbers or (small and _known_here(name, values, members, sizes, inputs))
    start, seconds, moves = meet(group, sizes, issue.ready, issue.lasting(chosen.seconds), moves)
    if moves and name != "barrier":
        _move(cluster, packet, values, group)
    elif not cluster.numbers:
        known.forget(outputs)
    chosen, model = replace(chosen, seconds=seconds), cluster.own[0].model
    takes = share(cluster, model, chosen, members.nodes, members.cards, nbytes, traffic)
    work = issue.place(start, seconds, nbytes, outputs, _place(members.ranks), chosen.name, takes)
    take_links(cluster, members, work.end)
    if outputs:
        torch.autograd.graph.increment_version([tensor for tensor in outputs if not tensor.is_inference()])
    return SimWork(lambda: work, list(outputs), work.order)


def _check(name: str, tensor: torch.Tensor) -> None:
    if not isinstance(tensor, SimTensor):
        raise RuntimeError(
            f"{name} got a tensor on {tensor.device} beside one on {here().own[0].name} (simulated): all tensors of a "
            "collective must be on the device"
        )
    check_cluster(tensor)
    if tensor.gpu != here().first and name != "barrier":
        raise RuntimeError(
            f"Duplicate GPU detected: rank {here().rank} calls {name} with a tensor on simgpu:{tensor.gpu}, another "
            f"rank's GPU; its own is simgpu:{here().first} (device, or torch.device('simgpu', local_rank))"
        )


def _plain(value: Any, of: Any) -> Any:
    if isinstance(value, SimTensor):
        return of(value)
    if isinstance(value, (list, tuple)):
        return [_plain(each, of) for each in value]
    return value


def _known_here(name: str, values: dict, members: Members, sizes: Sizes, inputs: list) -> bool:
    """With shapes only: does this rank know the numbers that it gives? (What is overwritten need not be known.)

    Where it stands for others, too, it knows what they give if it is the same; as a root, if it has got it before.
    """
    each, me = here().each, members.place
    root = values.get("root_rank", me) if name in ("broadcast", "scatter") else me
    if len(members.processes) < members.size:
        stands_for_root = root != me and members.ranks[root] // each == members.ranks[me] // each
        if root != me and (name == "scatter" or (stands_for_root and inputs[0].allocation.last_write is None)):
            return False
        if name == "all-to-all" and (len(members.processes) > 1 or set(sizes.expected) != {sizes.given[me]}):
            return False
        root = me if stands_for_root else root
    return all(known.values(tensor) is not None or (root != me and known.may_be(tensor)) for tensor in inputs)


def _move(cluster: RankCluster, packet: str, values: dict, group: ProcessGroup) -> None:
    """Numbers travel if there are numbers; with shapes only, those integers that are known do."""
    of = _numbers if cluster.numbers else known.kept
    plain = {key: _plain(value, of) for key, value in values.items()}
    over = group if cluster.meeting_of(group) is group else movement.Standing(group)
    movement.move(COLLECTIVES[packet].move, over, plain, tensors_in(plain[COLLECTIVES[packet].writes]))


def _numbers(tensor: SimTensor) -> torch.Tensor:
    raw = tensor.raw.detach()
    return torch.view_as_real(raw) if raw.is_complex() else raw


def _place(members: Sequence[int]) -> str:
    """The lane of a collective: "ranks 0–3 ↔"."""
    first, last = members[0], members[-1]
    step = members[1] - first if len(members) > 1 else 1
    if step == 1 and last - first == len(members) - 1:
        return f"ranks {first}–{last} ↔" if len(members) > 1 else f"rank {first} ↔"
    if len(members) > 4 and list(members) == list(range(first, last + 1, step)):
        return f"ranks {first}, {first + step}, … {last} ↔"
    return f"ranks {few(members)} ↔"


# --- Functional ones, which DTensor and FSDP2 use: each makes its output and issues the collective of c10d


def run_functional(func: Any, args: tuple, kwargs: dict) -> Any:
    """An operator of the namespace _c10d_functional has met a simulated tensor."""
    packet = packet_of(func).__name__
    values = operator_of(func).values(args, kwargs)
    if packet == "wait_tensor":
        (tensor,) = args
        if tensor.allocation.last_write is not None:
            stream_waits(tensor.allocation.last_write)
        return tensor
    if packet == "_wrap_tensor_autograd":
        return AsyncCollectiveTensor(args[0])
    if "_coalesced" in packet:
        single = getattr(torch.ops._c10d_functional, packet.replace("_coalesced", "")).default
        rest = [values[each.name] for each in schema_of(func).arguments[1:]]
        return [run_functional(single, (each, *rest), {}) for each in values["inputs"]]
    kind, tensor = packet.removesuffix("_out").removesuffix("_"), values.get("input")
    if kind not in _ISSUED:
        raise NotImplementedError(f"simulated ranks cannot do the functional collective {packet}: use dist's own")
    if packet in ("all_reduce", "broadcast"):  # (those in place have a "_" behind their names)
        tensor = torch.ops.aten.clone.default(tensor, memory_format=torch.contiguous_format)
    return _ISSUED[kind](_group(values["group_name"]), tensor, values)


def _group(name: Any) -> ProcessGroup:
    if isinstance(name, torch.ScriptObject):
        return ProcessGroup.unbox(name)
    return name if isinstance(name, ProcessGroup) else group_named(name)


def _empty(like: SimTensor, *shape: int) -> SimTensor:
    raw = torch.empty(shape, dtype=like.dtype, device=like.raw.device)
    return new(raw, here().own[0])


def _asked(options: Any, values: dict) -> Any:
    if "reduce_op" in values:
        options.reduceOp = getattr(ReduceOp, values["reduce_op"].upper())
    if "src" in values:
        options.rootRank = values["src"]
    options.asyncOp = True
    return options


def _all_reduce(group: ProcessGroup, tensor: SimTensor, values: dict) -> SimTensor:
    group.allreduce([tensor], _asked(c10d.AllreduceOptions(), values))
    return tensor


def _broadcast(group: ProcessGroup, tensor: SimTensor, values: dict) -> SimTensor:
    group.broadcast([tensor], _asked(c10d.BroadcastOptions(), values))
    return tensor


def _all_gather(group: ProcessGroup, given: SimTensor, values: dict) -> SimTensor:
    tensor: Any = given.contiguous()
    rows = tensor.shape[0] if tensor.dim() else 1
    output = values.get("out")
    output = _empty(tensor, rows * values["group_size"], *tensor.shape[1:]) if output is None else output
    all_gather_base(group)(output, tensor, _asked(c10d.AllgatherOptions(), {}))
    return output


def _reduce_scatter(group: ProcessGroup, given: SimTensor, values: dict) -> SimTensor:
    tensor: Any = given.contiguous()
    output = values.get("out")
    output = _empty(tensor, tensor.shape[0] // values["group_size"], *tensor.shape[1:]) if output is None else output
    reduce_scatter_base(group)(output, tensor, _asked(c10d.ReduceScatterOptions(), values))
    return output


def _all_to_all(group: ProcessGroup, given: SimTensor, values: dict) -> SimTensor:
    tensor: Any = given.contiguous()
    outs, ins = list(values["output_split_sizes"]), list(values["input_split_sizes"])
    output = _empty(tensor, sum(outs), *tensor.shape[1:])
    group.alltoall_base(output, tensor, outs, ins, _asked(c10d.AllToAllOptions(), {}))
    return output


_ISSUED = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "all_gather_into_tensor": _all_gather,
    "reduce_scatter_tensor": _reduce_scatter,
    "all_to_all_single": _all_to_all,
}
