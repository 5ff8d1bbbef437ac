"""send and recv over a check's wire, and the memory of a call: what is seen of them, and that nobody hangs."""

from __future__ import annotations

import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from checks import run
from checks.contracts import memory
from checks.contracts.messages import ENDS
from checks.contracts.wire import Stop, Wire

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks need not import pytest


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
    return seen, [call["peer"] for call in found["calls"]], {tuple(call["waited"]) for call in found["calls"]}


def test_messages_of_every_form_arrive():
    for rank, (seen, peers, waited) in enumerate(run(_all_forms, ranks=3, timeout=60)):
        left, right = (rank - 1) % 3, (rank + 1) % 3
        for step, got in enumerate(seen):
            assert got[:3] == [10 * step + 1 + 100_000 * left, 10 * step + 2 + 100_000 * left, left]
            assert got[3] == 10 * step + 1 + 100_000 * ((rank - 2) % 3)
        assert peers == [right, right, left, left, left, right, right, left, right, left] and waited == {("", 0)}


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
        found = wire.end_of_step()
    dist.all_reduce(theirs[::2])
    return ours[::2].tolist(), theirs[::2].tolist(), refused, [call["gaps"] for call in found["calls"]]


def test_tensors_with_gaps_are_what_they_are_to_gloo():
    for ours, theirs, refused, gaps in run(_with_gaps, ranks=2, timeout=60):
        assert ours == theirs and "contiguous" in refused and gaps == [True]


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
            elif how == "raised":
                if rank == 1:
                    wire.end_of_step(how=ENDS[1])
                dist.send(torch.ones(1), 1)
            elif how == "any" and rank == 2:
                dist.recv(torch.ones(1))
            elif how == "itself":
                dist.irecv(torch.ones(1), rank)
            elif how == "a collective" and rank == 0:
                dist.recv(torch.ones(1), 1)
            elif how == "a collective":
                dist.all_reduce(torch.ones(1))
            wire.end_of_step()
    except Stop:
        return wire.stopped


@pytest.mark.parametrize(
    ("how", "clause", "sentence"),
    [
        ("misfit", "misfit", "rank 0 sends 8 bytes, and rank 1 has room for 12"),
        ("returned", "alone", "rank 0 waits for a message from rank 1, which has returned: it would wait for ever"),
        ("raised", "alone", "rank 0 waits to send a message to rank 1, which has raised an exception"),
        ("any", "alone", "rank 2 waits for a message from rank 0, which has returned and rank 1, which has returned"),
        ("itself", "self", "sends to itself, or receives from itself"),
    ],
)
def test_ranks_that_wait_in_vain_all_hear_why(how, clause, sentence):
    found = run(_stops, how, ranks=3, timeout=30)
    assert [one["clause"] for one in found] == [clause] * 3 and len({one["sentence"] for one in found}) == 1
    assert sentence in found[0]["sentence"] and found[0]["everywhere"]


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
