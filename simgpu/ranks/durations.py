"""How long a communication between ranks takes, and which of a GPU's links it uses."""

from __future__ import annotations

from collections.abc import Sequence

from simgpu.ranks.cluster import Members, RankCluster
from simgpu.tensors import collectives
from simgpu.time import nccl
from simgpu.time.work import Share
from utils.hardware.links import point_to_point

REDUCED = {"barrier": 4}
"""Bytes of the all-reduce that a barrier is under NCCL."""


def choice(cluster: RankCluster, name: str, members: Members, nbytes: int) -> nccl.Choice:
    """How NCCL would do a collective in which all send equally much, and the seconds it takes.

    Args:
        name: "all-reduce", "reduce-scatter", "all-gather", "broadcast", "reduce" or "barrier".
        members: who takes part.
        nbytes: size of the whole tensor, in bytes.
    """
    kind = "all-reduce" if name == "barrier" else name
    return collectives.choice(
        cluster, kind, members.size, members.nodes, REDUCED.get(name, nbytes), cards=members.cards
    )


def share(
    cluster: RankCluster, name: str, members: Members, nbytes: int, chosen: nccl.Choice, traffic: float = 0
) -> Share | None:
    """What the collective takes of this rank's GPU while it runs.

    Args:
        chosen: what ``choice`` has found.
        traffic: bytes sent and received, if not all send equally much.
    """
    traffic = traffic or nccl.memory_traffic(name, chosen.algorithm, nbytes, members.size)
    return collectives.share(cluster, cluster.own[0].model, chosen, members.nodes, members.cards, nbytes, traffic)


def exchange_seconds(cluster: RankCluster, members: Members, sent: Sequence[int], received: Sequence[int]) -> float:
    """Seconds that this rank needs for messages to and from all members at once, as all-to-all, gather and scatter are.

    Both directions of a link work at the same time, and so do the links inside a node and its network card. In an
    all-to-all, GPUs of a node share the cards that they have together.

    Args:
        sent, received: bytes for, and from, each member.
    """
    me = cluster.node_of(cluster.rank)
    slowest = 0.0
    for near, link in ((True, cluster.inside), (False, cluster.network)):
        ranks = enumerate(members.ranks)
        others = [i for i, rank in ranks if rank != cluster.rank and (cluster.node_of(rank) == me) == near]
        out, back = sum(sent[i] for i in others), sum(received[i] for i in others)
        users = members.size / members.nodes / members.cards if out and back and not near else 1.0  # of a card
        if out or back:
            moved = point_to_point(max(out, back), link.for_collectives().shared_by(users))
            slowest = max(slowest, cluster.inside.start_s + moved)
    return slowest


def message_seconds(cluster: RankCluster, peer: int, nbytes: int) -> float:
    """Seconds of one message to or from another rank."""
    same_node = cluster.node_of(peer) == cluster.node_of(cluster.rank)
    link = cluster.inside if same_node else cluster.network
    return cluster.inside.start_s + point_to_point(nbytes, link.for_copies())


def _ends(cluster: RankCluster, members: Members) -> list[tuple[bool, ...]]:
    """This GPU's ends of the links that a collective uses: those to the ranks of its node, those to other nodes."""
    return [end for end in cluster.link_free if (members.size > members.nodes if end[0] else members.nodes > 1)]


def links_free(cluster: RankCluster, members: Members) -> float:
    """When this GPU's ends of the links that a collective uses have nothing more to do."""
    return max((cluster.link_free[end] for end in _ends(cluster, members)), default=0.0)


def take_links(cluster: RankCluster, members: Members, until: float) -> None:
    """A collective keeps this GPU's ends of its links busy, in both directions.

    What waits for the network leaves room on faster links inside the node: others use them meanwhile, and here as if
    they were alone.
    """
    network, inside = (link.for_collectives().bytes_per_s for link in (cluster.network, cluster.inside))
    waits = members.nodes > 1 and members.cards * network < inside
    for end in _ends(cluster, members):
        if not (waits and end[0]):
            cluster.link_free[end] = max(cluster.link_free[end], until)


def end_for(cluster: RankCluster, peer: int, out: bool) -> tuple[bool, bool]:
    """This GPU's end of a link, for a message to (``out``) or from another rank: a key of ``link_free``."""
    return cluster.node_of(peer) == cluster.node_of(cluster.rank), out
