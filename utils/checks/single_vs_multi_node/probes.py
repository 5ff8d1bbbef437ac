"""What the checks of this lab run inside ranks: watching groups being made, and starting a repaired launch for real."""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
from collections.abc import Iterator
from typing import Any

from utils.checks.verdicts import Wrong

Environment = dict[str, str]
SECONDS_TO_MEET = datetime.timedelta(seconds=6)


# --- process groups --------------------------------------------------------------------------------------------


def groups(make_groups: Any, nodes: int, per_node: int) -> None:
    """On each rank: rehearse, so that a mistake ends in a sentence and not in a hang; then make the groups for real.

    Raises:
        Wrong: what is wrong with the groups, or with the way they are made.
    """
    import torch
    import torch.distributed as dist

    _judge_rehearsal(_rehearse(make_groups, nodes, per_node), nodes, per_node)
    rank = dist.get_rank()
    made = make_groups(nodes, per_node)
    if not isinstance(made, tuple | list) or len(made) != 2:
        raise Wrong("make_groups returns two groups: that of my node, and that across the nodes.")
    node, local = divmod(rank, per_node)
    wanted = {
        "node": list(range(node * per_node, (node + 1) * per_node)),
        "cross": list(range(local, nodes * per_node, per_node)),
    }
    for name, group in zip(wanted, made, strict=True):
        _judge_members(name, _members(group), wanted, nodes)
        total = torch.tensor([rank])
        dist.all_reduce(total, group=group)
        if total.item() != sum(wanted[name]):
            raise Wrong(f"the all-reduce in the {name} group", measured=total.item(), expected=sum(wanted[name]))


def _members(group: Any) -> list[int]:
    import torch.distributed as dist

    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise Wrong(
            "make_groups returns a group that this rank is not in: new_group gives every rank a value for every group, "
            "so keep the one whose ranks contain your own."
        )
    if not isinstance(group, dist.ProcessGroup):
        kind = type(group).__name__
        raise Wrong(f"make_groups returns a {kind} where a process group is wanted: what dist.new_group gave.")
    return list(dist.get_process_group_ranks(group))


def _judge_members(name: str, members: list[int], wanted: dict[str, list[int]], nodes: int) -> None:
    """Members of this rank's node group or cross group, each likely mistake with its sentence."""
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    if sorted(members) == wanted[name]:
        return
    other = "cross" if name == "node" else "node"
    if len(members) == size:
        sentence = f"the {name} group is the group of all ranks"
    elif sorted(members) == wanted[other]:
        sentence = "the two groups are swapped: first that of my node, then that across the nodes"
    elif sorted(members) == list(range(rank % nodes, size, nodes)):
        sentence = "ranks on one node are neighbours: the node is rank // per_node, not rank % nodes"
    elif rank not in members:
        sentence = f"this rank is not in its own {name} group"
    else:
        sentence = f"the {name} group has the wrong members"
    raise Wrong(sentence, measured=members, expected=wanted[name])


Request = tuple[tuple[int, ...], bool]  # the ranks of a group, and whether its members alone meet


def _rehearse(make_groups: Any, nodes: int, per_node: int) -> list[list[Request]] | None:
    """Which groups each rank asks for, in order, found without making any. None if that cannot be found out."""
    import torch.distributed as dist

    asked: list[Request] = []
    failure = None
    with _only_noted(asked):
        try:
            make_groups(nodes, per_node)
        except BaseException as error:
            failure = error
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, None if failure is not None else asked)
    if _is_about_the_answer_itself(failure):
        raise failure
    return None if any(one is None for one in everyone) else everyone


def _is_about_the_answer_itself(failure: BaseException | None) -> bool:
    """Not started; other failures may come from the rehearsal's stand-ins, and the real run will tell."""
    return getattr(failure, "record", {}).get("kind") == "not started"


@contextlib.contextmanager
def _only_noted(asked: list[Request]) -> Iterator[None]:
    """Within it, all ways of torch to make a group only write down what was asked for."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    class Rehearsed:
        """Stands for a group that has not been made."""

    def note(ranks: Any = None, *_: Any, use_local_synchronization: bool = False, **__: Any) -> Any:
        ranks = tuple(range(dist.get_world_size())) if ranks is None else tuple(ranks)
        asked.append((ranks, use_local_synchronization))
        return Rehearsed() if dist.get_rank() in ranks else dist.GroupMember.NON_GROUP_MEMBER

    real = c10d._new_group_with_tag  # everything that makes groups comes through here
    c10d._new_group_with_tag = note
    try:
        yield
    finally:
        c10d._new_group_with_tag = real


def _judge_rehearsal(everyone: list[list[Request]] | None, nodes: int, per_node: int) -> None:
    if everyone is None or any(alone for asked in everyone for _, alone in asked):
        return
    calls = [[ranks for ranks, _ in asked] for asked in everyone]
    all_groups = list(dict.fromkeys(group for asked in calls for group in asked))
    for group in all_groups:
        absent = [rank for rank, asked in enumerate(calls) if group not in asked]
        if absent:
            raise Wrong(
                f"every rank must call new_group for every group, member or not: for {list(group)} "
                f"rank {absent[0]} does not, and the others would wait for it or meet the wrong group."
            )
    for rank, asked in enumerate(calls):
        first = next((pair for pair in zip(calls[0], asked, strict=False) if pair[0] != pair[1]), None)
        if first is not None:
            raise Wrong(
                "all ranks must make the groups in the same order: "
                f"where rank 0 makes {list(first[0])}, rank {rank} makes {list(first[1])}."
            )
    if len(calls[0]) > nodes + per_node:
        raise Wrong(
            f"{nodes} × {per_node} needs one group per node and one per local rank, and no more",
            measured=f"{len(calls[0])} groups",
            expected=f"{nodes + per_node} groups",
        )


# --- broken launches -------------------------------------------------------------------------------------------


def right_launch(counts: tuple[int, ...], addresses: tuple[str, ...], port: int) -> list[Environment]:
    """The environments that a right launch gives its processes, node by node.

    Args:
        counts: processes on each node.
        addresses: of the nodes.
        port: where all meet.
    """
    places = [(address, local) for count, address in zip(counts, addresses, strict=True) for local in range(count)]
    return [
        {
            "NODE_ADDR": address,
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(len(places)),
            "MASTER_ADDR": addresses[0],
            "MASTER_PORT": str(port),
        }
        for rank, (address, local) in enumerate(places)
    ]


def _change(environments: list[Environment], variable: str, values: list[str]) -> list[Environment]:
    return [{**one, variable: value} for one, value in zip(environments, values, strict=True)]


def _break(name: str, right: list[Environment]) -> list[Environment]:
    """The same launch with the mistake of this name."""
    nodes = len({one["NODE_ADDR"] for one in right})
    if name == "counted_on_each_node":
        return _change(right, "RANK", [one["LOCAL_RANK"] for one in right])
    if name == "number_of_nodes":
        return _change(right, "WORLD_SIZE", [str(nodes)] * len(right))
    if name == "local_rank_outside":
        return _change(right, "LOCAL_RANK", [one["RANK"] for one in right])
    if name == "own_address":
        return _change(right, "MASTER_ADDR", [one["NODE_ADDR"] for one in right])
    if name == "another_port":
        ports = [one["MASTER_PORT"] for one in right]
        return _change(right, "MASTER_PORT", [*ports[:-1], str(int(ports[-1]) + 1)])
    if name == "counted_from_one":
        return _change(right, "RANK", [str(int(one["RANK"]) + 1) for one in right])
    assert name == "nothing"
    return right


def broken_launches() -> list[tuple[str, list[Environment], list[Environment]]]:
    """The hidden launches: a name for sentences, the environments as they are, and as they should be."""
    two, three = ("10.0.0.1", "10.0.0.2"), ("192.168.7.5", "192.168.7.6", "192.168.7.9")
    launches = [
        ("2 × 2, ranks counted on each node", (2, 2), two, ["counted_on_each_node"]),
        ("2 × 2, ranks counted from 1", (2, 2), two, ["counted_from_one"]),
        ("2 × 3, the number of nodes as world size", (3, 3), two, ["number_of_nodes"]),
        ("2 × 3, local ranks that node 1 does not have", (3, 3), two, ["local_rank_outside"]),
        ("3 × 2, each node meets at its own address", (2, 2, 2), three, ["own_address"]),
        ("3 × 2, one process at another port", (2, 2, 2), three, ["another_port"]),
        ("a node with 3 processes and one with 1", (3, 1), two, ["local_rank_outside", "number_of_nodes"]),
        ("a launch without any mistake", (2, 2), two, ["nothing"]),
    ]
    found = []
    for name, counts, addresses, mistakes in launches:
        right = right_launch(counts, addresses, 29_500)
        broken = right
        for mistake in mistakes:
            broken = _break(mistake, broken)
        found.append((name, broken, right))
    return found


def start_repaired(repair: Any, mistake: str) -> int:
    """On each of four ranks: repair a broken launch, then meet the others through env://, as a program would.

    The nodes are 127.0.0.1 and 127.0.0.2; the port is one that rank 0 listens on already, so nobody can take it.

    Returns:
        The sum of all ranks, from an all-reduce in the group that the environment variables gave.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    me, port, server = dist.get_rank(), [0], None
    if me == 0:
        listener = socket.create_server(("127.0.0.1", 0))
        port = [listener.getsockname()[1]]
        server = dist.TCPStore(
            "127.0.0.1",
            port[0],
            is_master=True,
            wait_for_workers=False,
            multi_tenant=True,  # env:// on this rank finds it by its port
            master_listen_fd=listener.detach(),
        )
    dist.broadcast_object_list(port, src=0)
    right = right_launch((2, 2), ("127.0.0.1", "127.0.0.2"), port[0])
    os.environ.update(repair(_break(mistake, right))[me])
    try:
        store, rank, size = next(rendezvous("env://", timeout=SECONDS_TO_MEET))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=SECONDS_TO_MEET)
    except Exception as error:
        what = " ".join(str(error).split())[:200]
        raise Wrong(f"started with your repaired environments, the ranks do not meet ({what}).") from error
    total = torch.tensor([rank])
    dist.all_reduce(total)
    dist.barrier()
    del server
    return int(total.item())
