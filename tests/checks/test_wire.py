"""A check's wire: what is sent arrives late, is counted, and nobody hangs; the memory of a call."""

from __future__ import annotations

import sys
import threading

import cloudpickle
import numpy
import pytest
import torch
import torch.distributed as dist

import simgpu
from checks import run
from checks.engine import gpus, memory
from checks.engine.inside import OpenAnswer, Outcome
from checks.engine.wire import Stop, Wire
from utils.ranks.locate import looking

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks need not import pytest


# ---------------------------------------------------------------------- the wire
def _late_collectives():
    wire, rank, seen = Wire(), dist.get_rank(), []
    with wire.listening():
        first, second, third = (torch.full((2,), float(rank + 1 + 10 * number)) for number in range(3))
        works = [dist.all_reduce(first, async_op=True), dist.all_reduce(second, async_op=True)]
        dist.group.WORLD.allreduce([third])  # never waited for
        wire.ready += ["a", "b"]
        seen.append(first.tolist())
        works[1].wait()
        seen += [first.tolist(), second.tolist()]
        first += 1
        works[0].wait()
        works[0].wait()  # the second wait changes nothing
        dist.broadcast(second, 1)
        seen += [first.tolist(), third.tolist()]
        found = wire.end_of_step()
    return seen, found


def test_the_wire_delivers_when_somebody_waits_and_not_before():
    for rank, (seen, found) in enumerate(run(_late_collectives, ranks=2)):
        own, calls = rank + 1.0, found["calls"]
        assert seen == [[own] * 2, [own] * 2, [23.0] * 2, [3.0] * 2, [own + 20] * 2]
        assert [call["name"] for call in calls] == ["all_reduce"] * 3 + ["broadcast"]
        assert [call["changed"] for call in calls] == [True, False, False, False]
        assert [call["ready"] for call in calls] == [0, 0, 0, 2]
        assert [call["waited"] for call in calls] == [2, 2, None, 2]
        assert [call["asynchronous"] for call in calls][:2] == [True, True] and not calls[3]["asynchronous"]
        assert [call["bytes"] for call in calls] == [8] * 4 and calls[3]["peer"] == 1
        assert found["ready"] == ["a", "b"]


def _in_place():
    """A rank's share of the tensor that goes in is where the sum of the shares comes out."""
    wire, rank = Wire(), dist.get_rank()
    tensor = torch.arange(4.0) + 10 * rank
    with wire.listening():
        dist.reduce_scatter_tensor(tensor[2 * rank : 2 * rank + 2], tensor)
        dist.all_gather_into_tensor(tensor, tensor[2 * rank : 2 * rank + 2])
        found = wire.end_of_step()
    return tensor.tolist(), [call["changed"] for call in found["calls"]]


def test_what_comes_out_of_a_collective_may_be_a_view_of_what_goes_in():
    assert run(_in_place, ranks=2) == [([10.0, 12.0, 14.0, 16.0], [False, False])] * 2


def _all_kinds():
    """Every kind of communication, with its right result although it goes over the wire."""
    wire, rank, size = Wire(), dist.get_rank(), dist.get_world_size()
    mine = torch.full((2,), float(rank))
    with wire.listening():
        gathered = [torch.empty(2) for _ in range(size)]
        dist.all_gather(gathered, mine)
        flat = torch.empty(2 * size)
        dist.all_gather_into_tensor(flat, mine)
        part = torch.empty(2)
        dist.scatter(part, [torch.full((2,), 5.0 + to) for to in range(size)] if rank == 0 else None, src=0)
        reduced = mine.clone()
        dist.reduce(reduced, dst=1, op=dist.ReduceOp.MAX)
        exchanged = torch.empty(size)
        dist.all_to_all_single(exchanged, torch.arange(float(size)) + 10 * rank)
        got = torch.empty(2)
        works = [dist.isend(mine, (rank + 1) % size), dist.irecv(got, (rank - 1) % size)]
        before = got.tolist()
        works[1].wait()
        objects = [None] * size
        dist.all_gather_object(objects, f"rank {rank}")
        dist.barrier()
        found = wire.end_of_step()
    names = {call["name"]: call["waited"] for call in found["calls"]}
    return flat.tolist(), part.tolist(), reduced.tolist(), exchanged.tolist(), got.tolist(), before, objects, names


def test_every_kind_of_communication_works_over_the_wire():
    for rank, (flat, part, reduced, exchanged, got, before, objects, names) in enumerate(run(_all_kinds, ranks=2)):
        assert flat == [0, 0, 1, 1] and part == [5.0 + rank] * 2 and exchanged == [rank, 10.0 + rank]
        assert reduced == [1.0, 1.0] or rank == 0
        assert got == [1.0 - rank] * 2 and (before != got or rank == 1)
        assert objects == ["rank 0", "rank 1"]
        assert names["send"] is None and names["recv"] == 0
        assert set(names) == {"all_gather", "scatter", "reduce", "all_to_all", "send", "recv", "barrier"}


def _disagree(how):
    wire, rank = Wire(), dist.get_rank()
    try:
        with wire.listening():
            dist.all_reduce(torch.ones(3))
            if how == "bytes":
                dist.all_reduce(torch.ones(3 + rank % 2))
            elif how == "types":
                dist.all_reduce(torch.ones(2, dtype=torch.int64 if rank else torch.float64))
            elif how == "operations":
                dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)
            elif how == "sources":
                dist.broadcast(torch.ones(2), rank)
            elif how == "number" and rank == 1:
                dist.all_reduce(torch.ones(2), async_op=True)
            elif how == "kinds":
                dist.barrier() if rank else dist.all_reduce(torch.ones(2))
            wire.end_of_step()
    except Stop:
        return wire.stopped


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        (
            "bytes",
            "an all_reduce of 12 bytes (float32) on ranks 0, 2, and an all_reduce of 16 bytes (float32) on rank 1",
        ),
        ("types", "an all_reduce of 16 bytes (float64) on rank 0, and an all_reduce of 16 bytes (int64) on ranks 1, 2"),
        ("operations", "an all_reduce of 8 bytes (float32) on rank 0, and an all_reduce (MAX) of 8 bytes (float32) on"),
        ("sources", "a broadcast from rank 1 of 8 bytes (float32) on rank 1"),
        ("number", "nothing more: its step is over on ranks 0, 2, and an all_reduce of 8 bytes (float32) on rank 1"),
        ("kinds", "an all_reduce of 8 bytes (float32) on rank 0, and a barrier on ranks 1, 2"),
    ],
)
def test_ranks_that_disagree_all_hear_of_it_and_nobody_hangs(how, sentence):
    results = run(_disagree, how, ranks=3, timeout=30)
    assert results[0] and results == [results[0]] * 3
    assert results[0].startswith("the ranks do not call the same collectives. Number 2 of this step is")
    assert sentence in results[0]


# ---------------------------------------------------------------------- messages
def _all_forms():
    """Tags out of order, any source, batches, blocking calls, empty messages: again and again, and all arrive."""
    wire, rank, size = Wire(), dist.get_rank(), dist.get_world_size()
    right, left, seen = (rank + 1) % size, (rank - 1) % size, []
    for step in range(30):
        with wire.listening():
            places = torch.zeros(4, 5, dtype=torch.int64)[:, 0]  # one of them is contiguous, whatever its stride
            sending = [dist.isend(torch.tensor([10 * step + tag + 100_000 * rank]), right, tag=tag) for tag in (1, 2)]
            dist.recv(places[1:2], left, tag=2)
            dist.recv(places[:1], left, tag=1)
            receiving = dist.irecv(places[2:3])  # from any rank
            dist.send(torch.tensor([rank]), right)
            receiving.wait()
            batch = [dist.P2POp(dist.isend, places[:1].clone(), right), dist.P2POp(dist.irecv, places[3:], left)]
            works = [*sending, *dist.batch_isend_irecv(batch), dist.isend(torch.empty(0), right)]
            dist.recv(torch.empty(0), left)
            for work in works:
                work.wait()
            found = wire.end_of_step()
        seen.append(places.tolist())
    return seen, [call["peer"] for call in found["calls"]], {call["waited"] for call in found["calls"]}


def test_messages_of_every_form_arrive():
    for rank, (seen, peers, waited) in enumerate(run(_all_forms, ranks=3, timeout=60)):
        left, right = (rank - 1) % 3, (rank + 1) % 3
        for step, got in enumerate(seen):
            assert got[:3] == [10 * step + 1 + 100_000 * left, 10 * step + 2 + 100_000 * left, left]
            assert got[3] == 10 * step + 1 + 100_000 * ((rank - 2) % 3)
        assert peers == [right, right, left, left, left, right, right, left, right, left] and waited == {0}


def _with_gaps():
    """What gloo makes of a tensor with gaps, on the wire and without it; what a message of it raises."""
    wire, refused = Wire(), ""
    ours, theirs = torch.arange(8.0), torch.arange(8.0)
    with wire.listening():
        dist.all_reduce(ours[::2])
        try:
            dist.send(ours[::2], 1 - dist.get_rank())
        except RuntimeError as error:
            refused = str(error)
        wire.end_of_step()
    dist.all_reduce(theirs[::2])
    return ours[::2].tolist(), theirs[::2].tolist(), refused


def test_tensors_with_gaps_are_what_they_are_to_gloo():
    for ours, theirs, refused in run(_with_gaps, ranks=2, timeout=60):
        assert ours == theirs and "contiguous" in refused


def _late():
    wire, rank = Wire(), dist.get_rank()
    with wire.listening():
        mine, place = torch.full((2,), float(rank + 1)), torch.zeros(2)
        works = [dist.isend(mine, 1 - rank), dist.irecv(place, 1 - rank)]
        before = place.tolist()
        mine += 5
        works[1].wait()
        after = place.tolist()
        works[0].wait()
        dist.isend(mine, 1 - rank)  # nobody waits for it, and nobody receives it
        found = wire.end_of_step()
    return before, after, [(call["changed"], call["waited"] is None) for call in found["calls"]]


def test_a_message_arrives_when_somebody_waits_with_the_numbers_that_were_sent():
    for rank, (before, after, calls) in enumerate(run(_late, ranks=2)):
        assert before == [0.0, 0.0] and after == [2.0 - rank] * 2
        assert calls == [(True, False), (False, False), (False, True)]


def _stops(how):
    wire, rank, size = Wire(), dist.get_rank(), dist.get_world_size()
    try:
        with wire.listening():
            if how == "misfit":
                sending = dist.isend(torch.ones(2), (rank + 1) % size)
                dist.recv(torch.ones(2 + (rank == 1)), (rank - 1) % size)
                sending.wait()
            elif how == "returned" and rank != 1:
                dist.recv(torch.ones(1), (rank + 1) % size)
            elif how == "sends" and rank != 1:
                dist.send(torch.ones(1), 1)
            elif how == "any" and rank == 2:
                dist.recv(torch.ones(1))
            elif how == "itself":
                dist.irecv(torch.ones(1), rank)
            wire.end_of_step()
    except Stop:
        return wire.stopped


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("misfit", "rank 0 sends 8 bytes, and rank 1 has room for 12"),
        ("returned", "rank 0 waits for a message from rank 1, which has returned: it would wait for ever"),
        ("sends", "rank 0 waits to send a message to rank 1, which has returned"),
        ("any", "rank 2 waits for a message from rank 0, which has returned and rank 1, which has returned"),
        ("itself", "sends to itself, or receives from itself"),
    ],
)
def test_ranks_that_wait_in_vain_all_hear_why(how, sentence):
    found = run(_stops, how, ranks=3, timeout=30)
    assert found == [found[0]] * 3 and sentence in found[0]


# ---------------------------------------------------------------------- memory
def _held(how):
    given = torch.ones(100_000)
    with memory.held(given, python=True) as held:
        if how == "in place":
            given[:50].add_(given[50:100])
        elif how == "tensors":
            buffer = given[:1000].clone()
            buffer += 1
            del buffer
            given[:500].clone()
        elif how == "numpy":
            given.numpy().copy()
        elif how == "a list":
            given.tolist()
    return held


def test_bytes_are_counted_in_tensors_and_outside_of_them():
    assert _held("in place") == {"tensors": 0, "python": 0}
    assert _held("tensors") == {"tensors": 4000, "python": 0}
    assert _held("numpy")["python"] == pytest.approx(400_000 - memory.PYTHONS_OWN, abs=20_000)
    assert _held("a list")["python"] > 1_000_000


def test_a_tensor_in_the_given_ones_memory_is_nothing_held():
    given = torch.zeros(9000)
    with memory.held(given) as found:
        views = [torch.from_numpy(view).add_(1) for view in numpy.split(given.numpy(), 3)]
    assert len(views) == 3 and found["tensors"] == 0
    with memory.held(given[:3]) as found:
        given.clone()
    assert found["tensors"] == given.nbytes


def test_bytes_are_not_counted_while_somebody_looks_at_frames_which_hold_tensors():
    simgpu.cluster(gpus_per_node=1)
    empty = gpus.held()
    counted, kept = [], [torch.ones(1000, device="simgpu")]
    with looking:
        other = threading.Thread(target=lambda: counted.append(gpus.held()))
        other.start()
        other.join(0.5)
        assert counted == []
        kept.clear()
    other.join()
    assert counted == [empty]


def test_what_the_check_itself_raises_in_an_answer_is_no_error_of_the_answer():
    """Else a call that was ended because it waits for ever counted as one that raises an error, which some have to."""

    def waits_for_ever():
        raise Outcome("wrong", "waits for ever")

    with pytest.raises(Outcome) as caught:
        OpenAnswer("waits_for_ever", waits_for_ever, [__file__])()
    assert caught.value.__cause__ is None
