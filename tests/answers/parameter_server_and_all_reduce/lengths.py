"""Exercise 1 of the lab on all-reduces: all ranks learn all lengths, and raise together or not at all."""

# ruff: noqa: F401 (modules that changed answers use)
import time

import torch
import torch.distributed as dist
from known_answers import right, wrong


def check_length(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    lengths = [torch.tensor([tensor.numel()]) for _ in range(size)]
    for step in range(size - 1):
        sending = dist.isend(lengths[(rank - step) % size], (rank + 1) % size)
        dist.recv(lengths[(rank - step - 1) % size], (rank - 1) % size)
        sending.wait()
    everyone = [length.item() for length in lengths]
    if len(set(everyone)) > 1:
        raise ValueError(f"all ranks need tensors of the same length, but they have {everyone}")


SEND = "        sending = dist.isend(lengths[(rank - step) % size], (rank + 1) % size)\n"
RECEIVE = "        dist.recv(lengths[(rank - step - 1) % size], (rank - 1) % size)\n"
WAIT = "        sending.wait()\n"
ASK = "    if len(set(everyone)) > 1:\n"
DIFFER = "len(set(everyone)) > 1"
LISTED = "    everyone = [length.item() for length in lengths]\n"
RAISE = '        raise ValueError(f"all ranks need tensors of the same length, but they have {everyone}")'


# --- right, and written differently


@right("in batches, into one tensor")
def in_batches():
    def check_length(tensor):
        rank, size = dist.get_rank(), dist.get_world_size()
        lengths = torch.zeros(size, dtype=torch.int64)
        lengths[rank] = tensor.numel()
        places = lengths.split(1)
        for step in range(size - 1):
            pair = [
                dist.P2POp(dist.isend, places[(rank - step) % size], (rank + 1) % size),
                dist.P2POp(dist.irecv, places[(rank - step - 1) % size], (rank - 1) % size),
            ]
            for work in dist.batch_isend_irecv(pair):
                work.wait()
        if lengths.min() != lengths.max():
            raise ValueError(f"all tensors must have the same length, but the ranks have {lengths.tolist()}")

    return (check_length,)


@right("blocking calls: rank 0 breaks the circle")
def rank_0_breaks_the_circle():
    def check_length(tensor):
        me, size = dist.get_rank(), dist.get_world_size()
        known = {me: len(tensor)}
        latest = torch.tensor(len(tensor))
        for step in range(1, size):
            incoming = torch.tensor(0)
            if me == 0:
                dist.recv(incoming, size - 1)
                dist.send(latest, 1)
            else:
                dist.send(latest, (me + 1) % size)
                dist.recv(incoming, me - 1)
            latest = incoming
            known[(me - step) % size] = int(latest)
        if len(set(known.values())) > 1:
            raise ValueError(f"lengths {[known[one] for one in range(size)]}")

    return (check_length,)


@right("receives first, from any rank, with tags, and an error of its own kind")
def any_source():
    class LengthError(ValueError):
        pass

    def check_length(tensor):
        size, rank = dist.get_world_size(), dist.get_rank()
        found = [tensor.shape[0]]
        for step in range(size - 1):
            place = torch.zeros((), dtype=torch.long)
            receiving = dist.irecv(place, tag=step)
            dist.send(torch.tensor(found[-1]), dst=(rank + 1) % size, tag=step)
            receiving.wait()
            found.append(place.item())
        lengths = [found[(rank - other) % size] for other in range(size)]
        if min(lengths) < max(lengths):
            raise LengthError("lengths differ", lengths)

    return (check_length,)


@right("a float64 holds a length as well, and the works are waited for at the end")
def works_at_the_end():
    def check_length(tensor):
        rank, size = dist.get_rank(), dist.get_world_size()
        numbers = torch.full((size,), float(tensor.nelement()), dtype=torch.float64)
        works = []
        for step in range(size - 1):
            works.append(dist.isend(numbers[(rank - step) % size], dst=(rank + 1) % size))
            dist.recv(numbers[(rank - 1 - step) % size], src=(rank - 1) % size)
        for work in works:
            work.wait()
        if not torch.equal(numbers, numbers[0].expand(size)):
            raise ValueError(str(numbers.long().tolist()))

    return (check_length,)


# --- wrong: what is sent

wrong("a collective", "calls dist.all_gather, and dist.send and dist.recv is all that it may call", {
    SEND + RECEIVE + WAIT: "        dist.all_gather(lengths, lengths[rank].clone())\n"
})  # fmt: skip
wrong("everybody to everybody", "with another rank: in a ring rank r sends to rank r + 1 only", {
    "(rank + 1) % size)": "(rank + step + 1) % size)", "(rank - 1) % size)": "(rank - step - 1) % size)",
    "lengths[(rank - step) % size]": "lengths[rank]"
})  # fmt: skip
wrong("to the left", "your ring runs to the left", {
    SEND: SEND.replace("(rank + 1)", "(rank - 1)").replace("(rank - step)", "(rank + step)"),
    RECEIVE: RECEIVE.replace("(rank - 1)", "(rank + 1)").replace("(rank - step - 1)", "(rank + step + 1)"),
})  # fmt: skip
wrong("the neighbour only", "sends less than it has to with send", {"range(size - 1)": "range(min(size - 1, 1))"})
wrong("one step too many", "after N − 1 steps every number has been everywhere", {
    "range(size - 1)": "range(size if size > 1 else 0)"
})  # fmt: skip
wrong("in 4 bytes", "sends less than a number", {"[tensor.numel()])": "[tensor.numel()], dtype=torch.int32)"})
wrong("never waits", "never waits for", {WAIT: ""})
wrong("sleeps in place of a wait", "never waits for", {WAIT: "        time.sleep(0.01)\n"})
wrong("changes what is on its way", "changes a tensor while send is still using it", {
    WAIT: "        lengths[(rank - step) % size] += 1\n" + WAIT + "        lengths[(rank - step) % size] -= 1\n"
})  # fmt: skip
wrong("through the store", "calls store.", {
    LISTED: "    dist.distributed_c10d._get_default_store().set(f'length {rank}', str(len(tensor)))\n" + LISTED
})  # fmt: skip
wrong("a barrier at the end", "calls dist.barrier", {LISTED: "    dist.barrier()\n" + LISTED})
wrong("alone, it sends to itself", "with world size 1 there is nothing to send", {
    "range(size - 1)": "range(max(size - 1, 1))", "        dist.recv": "        size > 1 and dist.recv"
})  # fmt: skip
wrong("all send first", "ranks wait for each other, and nobody comes", {
    SEND: SEND.replace("sending = dist.isend", "dist.send"), WAIT: ""
})  # fmt: skip
wrong("a message too few on one rank", "which has returned: it would wait for ever", {
    "range(size - 1)": "range(size - 1 - (rank == 1))"
})  # fmt: skip


@wrong("the whole list travels", "sends more than a number")
def whole_list():
    def check_length(tensor):
        rank, size = dist.get_rank(), dist.get_world_size()
        lengths, incoming = torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.int64)
        lengths[rank] = len(tensor)
        for _ in range(size - 1):
            sending = dist.isend(lengths, (rank + 1) % size)
            dist.recv(incoming, (rank - 1) % size)
            sending.wait()
            lengths = torch.maximum(lengths, incoming)
        if len(set(lengths.tolist())) > 1:
            raise ValueError(f"different lengths: {lengths.tolist()}")

    return (check_length,)


wrong(
    "numbers that are not 0", "should hold the lengths of all ranks", {"tensor.numel()": "int(tensor.count_nonzero())"}
)


# --- wrong: who raises what

wrong("raises too early", "First all ranks learn all lengths, then all of them raise, or none", {
    WAIT: WAIT + "        if lengths[(rank - step - 1) % size] != tensor.numel():\n            raise ValueError('other')\n"
})  # fmt: skip
wrong("compares with the mean", "not every rank raises an error", {DIFFER: "tensor.numel() * size != sum(everyone)"})
wrong("only rank 0 raises", "not every rank raises an error", {DIFFER: DIFFER + " and rank == 0"})
wrong("complains always", "though all lengths are equal", {ASK: "    if everyone:\n"})
wrong("an empty one does not count", "not every rank raises an error", {
    DIFFER: "len({one for one in everyone if one}) > 1"
})  # fmt: skip
wrong("modulo 256", "not every rank raises an error", {DIFFER: "len({one % 256 for one in everyone}) > 1"})
wrong("an assertion", "raise ValueError, so that a caller can tell", {
    ASK + RAISE: "    assert len(set(everyone)) == 1, everyone"
})  # fmt: skip
wrong("no lengths in the text", "should hold the lengths of all ranks", {" {everyone}": " others"})
wrong("its own length first", "should hold the lengths of all ranks, rank 0 first", {
    " {everyone}": " {everyone[rank:] + everyone[:rank]}"
})  # fmt: skip
wrong("knows them from the last time", "not every rank raises an error", {
    "    everyone = [": "    everyone = known.setdefault(size, [", "in lengths]\n": "in lengths])\n",
    "def check_length": "known = {}\n\n\ndef check_length",
})  # fmt: skip
wrong("ends the program", "calls sys.exit()", {RAISE: "        raise SystemExit(f'{everyone}')"})


# --- wrong: what else is changed

wrong("the tensor is filled", "`tensor` has other numbers than before", {LISTED: "    tensor.fill_(0)\n" + LISTED})
wrong("a file", "writes a file", {LISTED: "    open(f'length {rank}', 'w').close()\n" + LISTED})
wrong(
    "grad mode stays off",
    "leaves grad mode other than before",
    {LISTED: "    torch.set_grad_enabled(False)\n" + LISTED},
)
wrong("the course's own", "the course's own code is no answer", {
    LISTED: "    import lessons.algorithms.all_reduce\n" + LISTED
})  # fmt: skip
