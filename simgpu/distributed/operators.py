"""The collectives of c10d on simulated tensors.

Every one of them goes through torch's dispatcher, so a ``SimTensor`` sees ``c10d::allreduce_`` and its kin before a
backend is chosen. There the ranks agree on when it begins, gloo moves the numbers, and it gets its place in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.distributed import ProcessGroup

from simgpu import known
from simgpu.distributed import messages, movement, timing
from simgpu.distributed.cluster import RankCluster, here
from simgpu.distributed.issue import Issue, meet
from simgpu.distributed.works import SimWork
from simgpu.launches import tensors_in
from simgpu.nccl import Choice
from simgpu.tensor import SimTensor, check_cluster


class Collective(NamedTuple):
    """What people call it, and which of the operator's arguments it reads and writes."""

    name: str
    reads: str
    writes: str


COLLECTIVES = {
    "allreduce_": Collective("all-reduce", "tensors", "tensors"),
    "allreduce_coalesced_": Collective("all-reduce", "tensors", "tensors"),
    "broadcast_": Collective("broadcast", "tensors", "tensors"),
    "reduce_": Collective("reduce", "tensors", "tensors"),
    "allgather_": Collective("all-gather", "input_tensors", "output_tensors"),
    "_allgather_base_": Collective("all-gather", "input_tensor", "output_tensor"),
    "allgather_coalesced_": Collective("all-gather", "input_list", "output_lists"),
    "allgather_into_tensor_coalesced_": Collective("all-gather", "inputs", "outputs"),
    "reduce_scatter_": Collective("reduce-scatter", "input_tensors", "output_tensors"),
    "_reduce_scatter_base_": Collective("reduce-scatter", "input_tensor", "output_tensor"),
    "reduce_scatter_tensor_coalesced_": Collective("reduce-scatter", "inputs", "outputs"),
    "alltoall_base_": Collective("all-to-all", "input", "output"),
    "alltoall_": Collective("all-to-all", "input_tensors", "output_tensors"),
    "gather_": Collective("gather", "input_tensors", "output_tensors"),
    "scatter_": Collective("scatter", "input_tensors", "output_tensors"),
    "barrier": Collective("barrier", "tensor", "tensor"),
    "monitored_barrier_": Collective("barrier", "tensor", "tensor"),
}
_EXCHANGES = ("all-to-all", "gather", "scatter")


def arguments_of(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """An operator's arguments by name, defaults included."""
    schema = func._schema.arguments
    values = {each.name: each.default_value for each in schema if each.has_default_value()}
    return values | dict(zip((each.name for each in schema), args, strict=False)) | kwargs


def run(func: Any, args: tuple, kwargs: dict) -> Any:
    """An operator of the namespace c10d has met a simulated tensor."""
    packet = func._overloadpacket.__name__
    if packet == "check_for_nan":
        return None
    values = arguments_of(func, args, kwargs)
    group = values["process_group"]
    group = ProcessGroup.unbox(group) if isinstance(group, torch.ScriptObject) else group
    if packet == "recv_any_source_":
        raise RuntimeError("dist.recv from any source does not work on simulated ranks, nor under NCCL: name the src")
    if packet in ("send", "recv_"):
        (tensor,) = values["tensors"]
        peer = values["dst"] if packet == "send" else values["src"]
        return messages.issue(packet == "send", tensor, group, peer, values["tag"]).boxed()
    try:
        work = collective(packet, values, group).boxed()
    except BaseException:
        _let_interrupts_in()
        raise
    returns = len(func._schema.returns)
    return (values[COLLECTIVES[packet].writes], work) if returns == 2 else work if returns else None


def _let_interrupts_in() -> None:
    """Python handles a signal at the next call of a function: here, rather than in ``backward.device_guard``.

    There it would end the process. A rank that waits for one that has failed gets an interrupt, and then its
    connections are cut.
    """


def collective(packet: str, values: dict[str, Any], group: ProcessGroup) -> SimWork:
    """Issue a collective; return what stands for it."""
    cluster = here()
    name, reads, writes = COLLECTIVES[packet]
    inputs, outputs = tensors_in(values[reads]), tensors_in(values[writes])
    for tensor in (*inputs, *outputs):
        _check(name, tensor)
    members = cluster.members_of(group)
    asynchronous = bool(values.get("async_op", True)) and name != "barrier"
    stream = cluster.stream_of(group.group_name) if asynchronous else cluster.current_stream()
    issue = Issue(name, stream, inputs, outputs, timing.links_free(cluster, members))
    nbytes = max(sum(tensor.nbytes for tensor in inputs), sum(tensor.nbytes for tensor in outputs))
    traffic = 0
    if name in _EXCHANGES:
        sent, received = _traffic(name, values, members.ranks, inputs, outputs)
        chosen = Choice("", "", timing.exchange_seconds(cluster, members, sent, received))
        traffic = sum(sent) + sum(received)
    else:
        chosen = timing.choice(cluster, name, members, nbytes)
    moves = cluster.numbers or _known_here(name, values, group, inputs)
    what = _description(name, values, inputs, outputs, members.ranks)
    start, seconds, moves = meet(group, what, issue.ready, chosen.seconds, moves)
    if moves and name != "barrier":
        _move(cluster, packet, values, group, inputs, outputs)
    elif not cluster.numbers:
        known.forget(outputs)
    takes = timing.share(cluster, name, members, nbytes, replace(chosen, seconds=seconds), traffic)
    how = f"{chosen.algorithm} {chosen.protocol}".strip()
    work = issue.place(start, seconds, nbytes, outputs, _place(members.ranks), how, takes)
    timing.take_links(cluster, members, work.end)
    if outputs:
        torch.autograd.graph.increment_version([tensor for tensor in outputs if not tensor.is_inference()])
    return SimWork(lambda: work, list(outputs), issue.order)


def _check(name: str, tensor: torch.Tensor) -> None:
    if not isinstance(tensor, SimTensor):
        raise RuntimeError(
            f"{name} got a tensor on {tensor.device} beside one on {here().own[0].name} (simulated): all tensors of a "
            "collective must be on the device"
        )
    check_cluster(tensor)


def _plain(value: Any, of: Any) -> Any:
    if isinstance(value, SimTensor):
        return of(value)
    if isinstance(value, (list, tuple)):
        return [_plain(each, of) for each in value]
    return value


def _known_here(name: str, values: dict, group: ProcessGroup, inputs: list) -> bool:
    """With shapes only: does this rank know the numbers that it gives? (What is overwritten need not be known.)"""
    gives_nothing = name in ("broadcast", "scatter") and group.rank() != values["root_rank"]
    return all(known.values(tensor) is not None or (gives_nothing and known.may_be(tensor)) for tensor in inputs)


def _move(cluster: RankCluster, packet: str, values: dict, group: ProcessGroup, inputs: list, outputs: list) -> None:
    """Numbers travel if there are numbers; with shapes only, those integers that are known do."""
    if cluster.alone:  # the others have the same
        for tensor in outputs if inputs else []:
            known.alike(tensor, inputs[0], group.size())
        return
    of = _numbers if cluster.numbers else known.kept
    plain = {key: _plain(value, of) for key, value in values.items()}
    movement.move(packet, group, plain, tensors_in(plain[COLLECTIVES[packet].writes]))


def _numbers(tensor: SimTensor) -> torch.Tensor:
    return tensor.raw.detach()


def _place(members: Sequence[int]) -> str:
    """The lane of a collective: "ranks 0–3 ↔"."""
    first, last = members[0], members[-1]
    step = members[1] - first if len(members) > 1 else 1
    if step == 1 and last - first == len(members) - 1:
        return f"ranks {first}–{last} ↔" if len(members) > 1 else f"rank {first} ↔"
    if len(members) > 4 and list(members) == list(range(first, last + 1, step)):
        return f"ranks {first}, {first + step}, … {last} ↔"
    return f"ranks {', '.join(map(str, members[:8]))}{', …' if len(members) > 8 else ''} ↔"


def _description(name: str, values: dict, inputs: list, outputs: list, members: Sequence[int]) -> str:
    """What must be the same on all ranks, in words."""
    if name == "barrier":
        return name
    some = inputs or outputs
    text = f"{name} of " if name in _EXCHANGES else f"{name} of {max(_count(inputs), _count(outputs)):,} "
    text += str(some[0].dtype).removeprefix("torch.") if some else "nothing"
    if "reduce_op" in values and name != "broadcast":
        text += f", {movement.kind(values).name}"
    return text + (f", root {members[values['root_rank']]}" if "root_rank" in values else "")


def _count(tensors: list) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _traffic(
    name: str, values: dict, members: Sequence[int], inputs: list, outputs: list
) -> tuple[list[int], list[int]]:
    """Bytes from this rank to each member, and from each member to it."""
    ranks, me = len(members), list(members).index(here().rank)
    nothing = [0] * ranks
    if name == "all-to-all":
        if "input_split_sizes" in values:
            sent = _split(values["input"], values["input_split_sizes"], ranks)
            return sent, _split(values["output"], values["output_split_sizes"], ranks)
        return [tensor.nbytes for tensor in inputs], [tensor.nbytes for tensor in outputs]
    root = values["root_rank"]
    one = (outputs if name == "scatter" else inputs)[0].nbytes
    to_root = [one * (i == root) for i in range(ranks)]
    from_all = [one] * ranks if me == root else nothing
    return (to_root, from_all) if name == "gather" else (from_all, to_root)


def _split(tensor: torch.Tensor, sizes: Sequence[int], ranks: int) -> list[int]:
    if not sizes:
        return [tensor.nbytes // ranks] * ranks
    return [size * (tensor.nbytes // max(1, tensor.shape[0])) for size in sizes]
