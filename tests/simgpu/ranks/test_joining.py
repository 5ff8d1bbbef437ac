"""A simulated GPU for every rank: when collectives and messages begin, how long they take, and how ranks join."""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from simgpu_ranks import communication, join

import simgpu
from simgpu.time import nccl
from utils.hardware.links import NVLINK4

RANKS = 4

MATRIX_US = 42.22
"""A product of two 512 × 512 matrices on an H100, in fp32."""


def premultiplied():
    device = join()
    rank, size = dist.get_rank(), dist.get_world_size()
    half, own = dist._make_nccl_premul_sum(0.5), dist._make_nccl_premul_sum(rank + 1.0)
    reduced = torch.arange(3.0, device=device) + rank
    dist.all_reduce(reduced, half)
    given, part = torch.ones(2 * size, device=device), torch.zeros(2, device=device)
    dist.reduce_scatter_tensor(part, given, op=own)
    dist.all_reduce(given)  # what was read is as before, and the next sum is a plain one
    return reduced.tolist(), part.tolist(), given[0].item()


def test_a_premultiplied_sum_multiplies_what_each_rank_gives(world):
    assert world.run(premultiplied) == [([3.0, 5.0, 7.0], [10.0, 10.0], 4.0)] * RANKS


def with_shapes_only():
    device = join(numbers=False)
    counts = torch.tensor([dist.get_rank(), 7], device=device)
    dist.all_reduce(counts)
    votes = torch.empty(4, 1, dtype=torch.int64, device=device)
    dist.all_gather_into_tensor(votes.view(-1), torch.tensor([3 * dist.get_rank()], device=device))
    with simgpu.profile() as prof:
        x = torch.ones(1000, 1000, device=device)
        dist.all_reduce(x)
        gathered = functional.all_gather_tensor(x, 0, dist.group.WORLD)
    objects = [None] * 4
    dist.all_gather_object(objects, dist.get_rank())
    return counts.tolist(), votes.flatten().tolist(), tuple(gathered.shape), communication(prof), objects


def test_with_shapes_only_small_integers_from_the_host_keep_their_numbers(world):
    for counts, votes, shape, events, objects in world.run(with_shapes_only):
        assert counts == [6, 28]
        assert votes == [0, 3, 6, 9]
        assert shape == (4000, 1000)
        assert [name for name, *_ in events] == ["all-reduce", "all-gather"]
        assert objects == [0, 1, 2, 3]


def late_rank(asynchronous):
    device = join()
    x, matrix = torch.ones(250_000, device=device), torch.ones(512, 512, device=device)
    torch.simgpu.synchronize()
    with simgpu.profile() as prof:
        for _ in range(10 * (dist.get_rank() == 3)):
            matrix @ matrix
        work = dist.all_reduce(x, async_op=asynchronous)
        products = [matrix @ matrix for _ in range(4)]
        if asynchronous:
            work.wait()
        x + products[0].sum()
    return communication(prof), [(e.name, e.start * 1e6, e.end * 1e6) for e in prof.events], prof.events[0].seconds


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_collective_begins_when_the_last_rank_is_ready_and_wait_orders_streams(world, asynchronous):
    ranks = world.run(late_rank, asynchronous)
    product = ranks[3][2] * 1e6
    ring = nccl.choose("all-reduce", 1_000_000, 1, 4, NVLINK4.for_collectives(), NVLINK4, 1).seconds * 1e6
    ready = 10 + 10 * product  # the host's launch, and ten products on the straggler
    for rank, (events, everything, _) in enumerate(ranks):
        assert events == [("all-reduce", pytest.approx(ready, abs=0.01), pytest.approx(ready + ring, abs=0.01))]
        (_, began, ended), *_ = events
        products = [(start, end) for name, start, end in everything if name == "mm"]
        assert len(products) == 4 + 10 * (rank == 3)
        assert all(end <= began + 1e-3 or start >= ended - 1e-3 for start, end in products) or (
            rank == 3 and asynchronous
        )
        assert (max(end for _, end in products) > ended - 1e-3) == (rank == 3 or not asynchronous)
        assert min(start for name, start, _ in everything if name == "add") >= ended


def alike_each_time(busy, times=5):
    import threading

    stop = threading.Event()
    if busy:
        threading.Thread(target=lambda: [sum(range(1000)) for _ in iter(stop.is_set, True)], daemon=True).start()
    device = join()
    found = set()
    for _ in range(times):
        with simgpu.profile() as prof:
            x = torch.ones(100 * (dist.get_rank() + 1), 100, device=device) @ torch.ones(100, 3000, device=device)
            works = [dist.all_reduce(torch.ones(10_000 * i, device=device), async_op=True) for i in (3, 1, 2)]
            peer = dist.get_rank() ^ 1
            messages = [dist.P2POp(dist.isend, x[:50], peer), dist.P2POp(dist.irecv, torch.empty_like(x[:50]), peer)]
            works += dist.batch_isend_irecv(messages)
            for work in reversed(works):
                work.wait()
            dist.barrier()
        found.add((tuple(communication(prof)), round(prof.elapsed * 1e9)))
    stop.set()
    return found


@pytest.mark.parametrize("times", [5, pytest.param(50, marks=pytest.mark.nightly)])
def test_the_same_program_gives_the_same_timeline_each_time_also_beside_busy_threads(world, times):
    quiet, busy = (
        world.run(alike_each_time, False, times),
        world.run(alike_each_time, True, times),
    )  # both cores: four threads
    assert [len(found) for found in quiet] == [1] * RANKS
    assert busy == quiet


def contending():
    device = join(nodes=2)
    rank = dist.get_rank()
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])], [dist.new_group([0, 1]), dist.new_group([2, 3])]
    across, inside = (next(g for g in pairs if rank in dist.get_process_group_ranks(g)) for pairs in groups)
    x, y = torch.ones(1_000_000, device=device), torch.ones(1_000_000, device=device)
    with simgpu.profile() as prof:
        works = [
            dist.all_reduce(x, group=across, async_op=True),
            dist.all_reduce(y, group=dist.group.WORLD, async_op=True),
        ]
        works.append(dist.all_reduce(x, group=inside, async_op=True))
        for work in works:
            work.wait()
    return [(event.place, event.how, event.start, event.end) for event in prof.events]


def test_groups_that_use_the_same_card_wait_for_each_other(world):
    for rank, events in enumerate(world.run(contending)):
        pair, everyone, node = sorted(events, key=lambda event: event[0] in ("ranks 0–1 ↔", "ranks 2–3 ↔"))
        assert pair[0] == ("ranks 0, 2 ↔", "ranks 1, 3 ↔")[rank % 2]
        assert everyone[0] == "ranks 0–3 ↔"
        assert everyone[2] == pytest.approx(pair[3])  # its network card is the same
        assert pair[3] <= node[2] < everyone[3]  # what waits for the network leaves room on NVLink
        assert pair[1].split()[0] in ("ring", "tree")


def message_order():
    device = join()
    rank = dist.get_rank()
    a, b = torch.full((1000,), 1.0, device=device), torch.full((250_000,), 2.0, device=device)
    with simgpu.profile() as prof:
        if rank == 0:
            for work in reversed([dist.isend(a, 1), dist.isend(b, 1)]):
                work.wait()
        if rank == 1:
            x, y = torch.empty_like(a), torch.empty_like(b)
            torch.ones(512, 512, device=device) @ torch.ones(512, 512, device=device)
            for work in reversed([dist.irecv(x, 0), dist.irecv(y, 0)]):
                work.wait()
            assert (x[0].item(), y[0].item()) == (1.0, 2.0)
        if rank == 2:
            dist.isend(a, 3)  # nobody waits for it but the end of the profile
        if rank == 3:
            dist.recv(a, 2)
    return [(e.name, e.place, e.start, e.end) for e in prof.events if e.place.startswith("rank")]


def test_messages_between_a_pair_keep_their_order_and_begin_when_both_sides_are_ready(world):
    ranks = world.run(message_order)
    for left, right in ((0, 1), (2, 3)):
        assert [event[1:] for event in ranks[left]] == [event[1:] for event in ranks[right]]
        assert {event[0] for event in ranks[left]} == {"send"}
    (_, place, _, first_ends), (_, _, second_begins, second_ends) = ranks[0]
    assert place == "rank 0 → rank 1"
    assert second_begins == pytest.approx(first_ends)
    assert second_ends - second_begins > 1_000_000 / NVLINK4.for_copies().bytes_per_s


def toys_across_nodes(cards):
    simgpu.join("toy", 2, nics_per_node=cards, numbers=False)
    dist.init_process_group("simccl")
    rank = dist.get_rank()
    groups = [dist.new_group(pair) for pair in ([0, 2], [1, 3])]
    x = torch.empty(25_000_000, device=torch.device("simgpu", rank % 2))
    with simgpu.profile() as prof:
        dist.all_reduce(x, group=groups[rank % 2])
    return [event.seconds for event in prof.events]


def test_toys_share_a_card_by_the_textbook(world):
    """100 MB over a ring of two at 50 GB/s: 2 · ½ · 100 MB, with half of the card twice as long; α is 14 µs."""
    for (own,), (shared,) in zip(world.run(toys_across_nodes, 2), world.run(toys_across_nodes, 1), strict=True):
        assert (shared - 28e-6) / (own - 28e-6) == pytest.approx(2)


def messages_and_collectives():
    device = join(numbers=False)
    rank = dist.get_rank()
    large, x, y = (torch.empty(25_000_000, device=device) for _ in range(3))
    with simgpu.profile() as prof:
        first = dist.all_reduce(large, async_op=True)
        sent = [dist.isend(x, 1), dist.isend(y, 2)] if rank == 0 else []
        received = [dist.irecv(x, 0)] if rank in (1, 2) else []
        for work in sent + received:
            work.wait()
        last = dist.all_reduce(large, async_op=True)
        first.wait()
        last.wait()
    return [(e.place, e.start, e.end) for e in prof.events if e.place.startswith("rank")]


def test_messages_and_collectives_that_need_the_same_end_of_a_link_wait_for_each_other(world):
    ranks = world.run(messages_and_collectives)
    first, to_1, to_2, last = ranks[0]
    assert [to_1[0], to_2[0]] == ["rank 0 → rank 1", "rank 0 → rank 2"]
    assert to_1[1] == pytest.approx(first[2], abs=1e-12)
    assert to_2[1] == pytest.approx(to_1[2], abs=1e-12)  # from the same GPU
    assert last[1] == pytest.approx(to_2[2], abs=1e-12)
    assert ranks[1] == [first, to_1, last]  # both ends agree
    assert ranks[2] == [first, to_2, last]
    assert ranks[3] == [first, last]


def one_late_receiver():
    device = join(numbers=False)
    rank = dist.get_rank()
    x, y = torch.empty(25_000_000, device=device), torch.empty(25_000_000, device=device)
    with simgpu.profile() as prof:
        if rank == 0:
            for work in [dist.isend(x, 1), dist.isend(y, 2)]:
                work.wait()
        if rank == 1:
            for _ in range(100):
                torch.empty(512, 512, device=device) @ torch.empty(512, 512, device=device)
            dist.recv(x, 0)
        if rank == 2:
            dist.recv(y, 0)
    return [(e.place, e.start, e.end) for e in prof.events if e.place.startswith("rank")]


def test_a_receiver_that_is_late_does_not_hold_up_messages_to_others_for_long(world):
    ranks = world.run(one_late_receiver)
    to_2, to_1 = ranks[0]
    assert (to_1[0], to_2[0]) == ("rank 0 → rank 1", "rank 0 → rank 2")
    assert ranks[1:3] == [[to_1], [to_2]]
    assert to_1[1] > 100 * MATRIX_US * 1e-6
    seconds = to_2[2] - to_2[1]
    assert to_2[1] == pytest.approx(10e-6 + seconds)  # when the first would have been through


def test_without_ranks_there_is_one_sentence(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(RuntimeError, match="start it with torchrun"):
        simgpu.join()
    with pytest.raises(ValueError, match="3 ranks cannot be shared out equally to 2 nodes"):
        simgpu.join(nodes=2, rank=0, world_size=3)
    with pytest.raises(ValueError, match="Did you mean 'InfiniBand NDR"):
        simgpu.join(network="InfinyBand NDR", rank=0, world_size=2)


_JOINS = """
import os
import torch
import simgpu

before = int(os.environ["LOCAL_RANK"])
simgpu.join(nodes=2)
tensor = torch.ones(2, device=torch.device("simgpu", int(os.environ["LOCAL_RANK"])))
words = [os.environ[name] for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")]
if before > 1:
    try:
        torch.ones(2, device=torch.device("simgpu", before))
    except RuntimeError as error:
        words.append(str(error))
print(";".join(["joined", *words, str(tensor.device)]) + "\\n", end="", flush=True)
"""


@pytest.mark.extras
def test_ranks_that_torchrun_has_started_on_one_node_are_shared_out_to_two(tmp_path):
    script = tmp_path / "joins.py"
    script.write_text(_JOINS)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", str(script)]
    done = subprocess.run(launch, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    said = sorted(line.split(";")[1:] for line in done.stdout.splitlines() if line.startswith("joined"))
    assert [(*words[:5], words[-1]) for words in said] == [
        ("0", "0", "2", "0", "2", "simgpu:0"),
        ("1", "1", "2", "0", "2", "simgpu:1"),
        ("2", "0", "2", "1", "2", "simgpu:0"),
        ("3", "1", "2", "1", "2", "simgpu:1"),
    ]
    for _, local, *_, sentence, _ in said[2:]:
        assert "on each of 2 nodes" in sentence and f"This rank's is simgpu:{local}" in sentence, sentence
