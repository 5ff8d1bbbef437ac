"""A cluster of which this process, a rank, owns one GPU; and how all of its GPUs are connected."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed import get_process_group_ranks

from simgpu.cluster import Cluster, SimulatedGPU, current
from simgpu.time.streams import Stream


class Members(NamedTuple):
    """The ranks of a process group, how many, on how many nodes; and on how many network cards of each node.

    A part of a card, if other groups that the program has made in the same way use it at the same time: those of the
    same dimension of a mesh.

    Args:
        place: which of them this rank is.
        processes: those that are there. All, under ``simgpu.join``; else each stands for the members in its stage.
    """

    ranks: tuple[int, ...]
    size: int
    nodes: int
    cards: float
    place: int
    processes: tuple[int, ...]


class RankCluster(Cluster):
    """The GPUs of this rank's node, one of which is its own: number ``local_rank``, and "simgpu" without a number.

    Args:
        rank, world_size: of this process, and how many there are on all nodes.
        world_nodes: nodes, with equally many ranks each.
        each: ranks that a process stands for, itself the first of them (or the one of all): ``simgpu.one_of``. The
            others do not exist; they are taken to do the same at the same simulated time.
        store: where these processes find each other. None: as the program says.

    Attributes:
        link_free: when this GPU's ends of the links have nothing more to do, by whether it is a link inside the node,
            and whether it leads out. A collective, or a message, so waits for the one before it.
        groups: the ranks of all process groups that the program has made, this rank among them or not.
        unfinished: what waits for messages of which it is not yet known when they began, as nobody has waited for them.
        overlap: in ``simgpu.overlapped``, what it keeps (``works.Overlap``).
        directions: from which rank to which messages have gone (``messages.Direction``).
        meetings: by the name of a group of which some members are no processes: gloo between those that are, or None.
    """

    between_ranks = True
    way_to_numbers = "join it with numbers=True"

    def __init__(
        self, *args: Any, rank: int, world_size: int, world_nodes: int, each: int = 1, store: Any = None
    ) -> None:
        super().__init__(*args)
        self.rank, self.world_size, self.world_nodes, self.each, self.store = rank, world_size, world_nodes, each, store
        if store is not None:
            self.way_to_numbers = "start the other ranks, too (simgpu.join), for one alone does not know what they send"
        self.overlap: Any = None
        self.meetings: dict[str, Any] = {}
        self.rank_number, self.prefix = rank, f"rank {rank}, "
        self.first, self.several = rank % self.gpus_per_node, world_size > 1
        self.link_free: dict[tuple[bool, ...], float] = dict.fromkeys(itertools.product((True, False), repeat=2), 0.0)
        self.groups: dict[tuple[int, ...], None] = {}
        self.unfinished: list[Callable[[], Any]] = []
        self.directions: dict[Any, Any] = {}
        self.streams: dict[str, Stream] = {}
        self._members: dict[str, Members] = {}

    @property
    def local_rank(self) -> int:
        """The number of this process's GPU."""
        return self.first

    @property
    def own(self) -> list[SimulatedGPU]:
        return [self.gpus[self.first]]

    def index(self, device: int | str | torch.device | None) -> int:
        """The number of a GPU of this node; 0 is this rank's own, for C++ sees one device and calls it 0."""
        device = torch.device(device) if isinstance(device, str) else device
        said = device.index if isinstance(device, torch.device) else device
        number = self.named(device)
        return self.first if said == 0 else number

    def named(self, device: int | str | torch.device | None) -> int:
        """The number of a GPU of this node that the program itself has named.

        As under CUDA, a rank may put tensors on GPUs of others: "simgpu:0" is GPU 0 for all, and what another rank has
        pickled comes back on the GPU that it was on. They count in this process's books of that GPU, beside which its
        own rank keeps others. Where they would have to travel, NCCL's error comes: one GPU for two ranks.

        Raises:
            RuntimeError: there is no such GPU.
        """
        try:
            return super().index(device)
        except RuntimeError as error:
            if self.world_nodes == 1 or "ordinal" not in str(error):
                raise
            raise RuntimeError(
                f"{error}, on each of {self.world_nodes} nodes. This rank's is simgpu:{self.first}: simgpu.join() has "
                "changed LOCAL_RANK in the environment accordingly, so read it after that"
            ) from None

    def note_group(self, ranks: Iterable[int]) -> None:
        """The program makes a process group, of which this rank need not be a member."""
        self.groups[tuple(sorted(ranks))] = None
        self._members.clear()

    def members_of(self, group: Any) -> Members:
        """The ranks of a group, and the nodes on which they are."""
        members = self._members.get(group.group_name)
        if members is None or members.size != group.size():
            ranks = tuple(get_process_group_ranks(group))
            nodes = len({self.node_of(rank) for rank in ranks})
            cards, place = self._cards(ranks, nodes), ranks.index(self.rank)
            members = Members(ranks, len(ranks), nodes, cards, place, self.processes_among(ranks))
            self._members[group.group_name] = members
        return members

    def meeting_of(self, group: Any) -> Any:
        """Over what the processes of a group talk: the group itself, if all members are some. None: here is one."""
        return self.meetings.get(group.group_name, group)

    def processes_among(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Those members of a group of this rank that are processes.

        Raises:
            NotImplementedError: the group has other members in one stage than in another.
        """
        if self.each == 1:
            return tuple(ranks)
        places = defaultdict(list)
        for rank in ranks:
            places[rank // self.each].append(rank % self.each)
        if len(set(map(tuple, places.values()))) > 1:
            raise NotImplementedError(
                f"a group of ranks {few(ranks)} has not the same places in "
                f"each pipeline stage of {self.each} ranks, for which one process stands here: make groups that have, "
                "or start all ranks (simgpu.join)"
            )
        return tuple(stage * self.each + self.rank % self.each for stage in places)

    def _cards(self, ranks: tuple[int, ...], nodes: int) -> float:
        """How many network cards of its node a group has, where other groups may use them too."""
        cards = self._cards_here(ranks)
        users = dict.fromkeys(cards, 1)
        taken = set(ranks)
        for other in self.groups:
            alike = len(other) == len(ranks) and len({self.node_of(rank) for rank in other}) == nodes
            if nodes > 1 and alike and taken.isdisjoint(other):
                taken.update(other)
                for card in cards & self._cards_here(other):
                    users[card] += 1
        return sum(1 / count for count in users.values())

    def _cards_here(self, ranks: tuple[int, ...]) -> set[int]:
        """The cards of this rank's node that these ranks use."""
        here_ = [rank % self.gpus_per_node for rank in ranks if self.node_of(rank) == self.node_of(self.rank)]
        return {self._card(self.gpus[local]) for local in here_}

    def node_of(self, rank: int) -> int:
        """The node of a rank of the world."""
        return rank // self.gpus_per_node

    def stream_of(self, group: str) -> Stream:
        """The stream on which a group's asynchronous collectives run, as NCCL has one for each communicator."""
        if group not in self.streams:
            self.streams[group] = Stream(self.first)
            self.streams[group].name = f"the stream of {group if ' ' in group else 'a process group'}"
        return self.streams[group]

    def forget_groups(self) -> None:
        """New process groups begin afresh: what a failed program has left under way will never end."""
        self.unfinished.clear()
        self.directions.clear()
        self._members.clear()
        self.groups.clear()
        self.meetings.clear()

    def finish_messages(self) -> None:
        """Wait, in real time, until it is known when each message that this rank has issued began."""
        while self.unfinished:
            self.unfinished.pop(0)()

    def synchronize(self, gpu: int | None = None) -> None:
        self.finish_messages()
        super().synchronize(gpu)


def few(numbers: Sequence[int]) -> str:
    """The first eight, in words."""
    return ", ".join(map(str, numbers[:8])) + ", …" * (len(numbers) > 8)


def here() -> RankCluster:
    """The cluster of this rank.

    Raises:
        RuntimeError: there is none: this process has called ``simgpu.cluster``, or nothing.
    """
    cluster = current()
    if not isinstance(cluster, RankCluster):
        raise RuntimeError(
            "this process simulates all GPUs by itself (simgpu.cluster), so it has no other ranks to talk to: use "
            "simgpu.all_reduce and its kin here, or give each rank its own GPU, with simgpu.join() or %%ranks --gpu"
        )
    return cluster
