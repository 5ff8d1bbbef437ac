"""Exercise 3 of the lab on all-reduces: halves of halves, and back."""

import numpy
import torch
import torch.distributed as dist
from known_answers import right, wrong


def halving_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    power = 1 << (size.bit_length() - 1)
    if rank >= power:
        dist.send(tensor, rank - power)
        dist.recv(tensor, rank - power)
        return
    extra = rank + power < size
    buffer = tensor.new_empty(len(tensor) if extra else (len(tensor) + 1) // 2)
    if extra:
        dist.recv(buffer, rank + power)
        tensor += buffer
    rounds, part, distance = [], tensor, power // 2
    while distance > 0:
        partner, halves = rank ^ distance, part.tensor_split(2)
        keep, give = halves if rank < partner else halves[::-1]
        sending = dist.isend(give, partner)
        dist.recv(buffer[: len(keep)], partner)
        sending.wait()
        keep += buffer[: len(keep)]
        rounds.append((partner, keep, give))
        part, distance = keep, distance // 2
    for partner, keep, give in reversed(rounds):
        sending = dist.isend(keep, partner)
        dist.recv(give, partner)
        sending.wait()
    if extra:
        dist.send(tensor, rank + power)


EQUAL = {
    "25: not `rank < partner`": "the text leaves open who keeps the lower half: both decide alike",
    "25: other comparison in `rank < partner`": "the text leaves open who keeps the lower half: both decide alike",
    "18: 1 → 2": "halves may be longer by as many elements as P, and so may their place",
}
ABOVE = "    if rank >= power:\n        dist.send(tensor, rank - power)\n        dist.recv(tensor, rank - power)\n        return\n"
TAKE = "        dist.recv(buffer, rank + power)\n        tensor += buffer\n"
GIVE = "    if extra:\n        dist.send(tensor, rank + power)\n"
PLACE = "    buffer = tensor.new_empty(len(tensor) if extra else (len(tensor) + 1) // 2)\n"
FIRST = "    rounds, part, distance = [], tensor, power // 2\n"
KEEP = "        keep, give = halves if rank < partner else halves[::-1]\n"
SEND = "        sending = dist.isend(give, partner)\n"
RECEIVE = "        dist.recv(buffer[: len(keep)], partner)\n"
ADD = "        keep += buffer[: len(keep)]\n"
BACK = "    for partner, keep, give in reversed(rounds):\n"
COPY = "        dist.recv(give, partner)\n"


# --- right, and written differently


@right("the nearest partner first")
def nearest_first():
    def halving_all_reduce(tensor):
        me, size = dist.get_rank(), dist.get_world_size()
        rounds = size.bit_length() - 1
        power = 2**rounds
        if me >= power:
            dist.isend(tensor, me - power).wait()
            dist.irecv(tensor, me - power).wait()
            return tensor
        beyond = me + power
        if beyond < size:
            theirs = torch.empty_like(tensor)
            dist.recv(theirs, beyond)
            tensor.add_(theirs)
            del theirs
        start, end, ways = 0, tensor.numel(), []
        for bit in range(rounds):
            partner, middle = me ^ (1 << bit), (start + end) // 2
            mine, other = (start, middle), (middle, end)
            if me >> bit & 1:
                mine, other = other, mine
            came = tensor.new_empty(mine[1] - mine[0])
            receiving = dist.irecv(came, partner)
            sending = dist.isend(tensor[slice(*other)], partner)
            receiving.wait(), sending.wait()
            tensor[slice(*mine)].add_(came)
            del came
            ways.insert(0, (partner, mine, other))
            start, end = mine
        for partner, mine, other in ways:
            for work in dist.batch_isend_irecv([
                dist.P2POp(dist.irecv, tensor[slice(*other)], partner),
                dist.P2POp(dist.isend, tensor[slice(*mine)], partner),
            ]):  # fmt: skip
                work.wait()
        if beyond < size:
            dist.send(tensor, beyond)
        return tensor

    return (halving_all_reduce,)


@right("calls itself, and whole chunks")
def calls_itself():
    def exchange(outgoing, incoming, partner):
        if outgoing.numel() and dist.get_rank() < partner:
            dist.send(outgoing, partner)
        if incoming.numel():
            dist.recv(incoming, partner)
        if outgoing.numel() and dist.get_rank() > partner:
            dist.send(outgoing, partner)

    def reduce(tensor, edges, first, count, place):
        """Chunks first to first + count are this rank's and its partners'."""
        rank, half = dist.get_rank(), count // 2
        if half == 0:
            return
        upper = rank & half
        mine, theirs = (first + half, first) if upper else (first, first + half)
        cut = lambda begin: tensor[edges[begin] : edges[begin + half]]  # noqa: E731
        incoming = place[: cut(mine).numel()]
        exchange(cut(theirs), incoming, rank ^ half)
        cut(mine).add_(incoming)
        reduce(tensor, edges, mine, half, place)
        exchange(cut(mine), cut(theirs), rank ^ half)

    def halving_all_reduce(tensor):
        rank, size, length = dist.get_rank(), dist.get_world_size(), len(tensor)
        power = 1
        while 2 * power <= size:
            power *= 2
        if rank >= power:
            dist.send(tensor, rank - power)
            dist.recv(tensor, rank - power)
            return
        per_chunk = -(-length // power)
        edges = [min(number * per_chunk, length) for number in range(power + 1)]
        has_guest = rank + power in range(size)
        place = torch.empty_like(tensor if has_guest else tensor[: edges[power // 2]])
        if has_guest:
            dist.recv(place, rank + power)
            tensor.copy_(torch.add(tensor, place, out=place))
        reduce(tensor, edges, 0, power, place)
        if has_guest:
            dist.send(tensor, rank + power)

    return (halving_all_reduce,)


@right("a place of numpy's, slices, and no list of rounds")
def slices():
    @torch.no_grad()
    def halving_all_reduce(tensor):
        rank, size, length = dist.get_rank(), dist.get_world_size(), tensor.numel()
        if size == 1:
            return
        power = 1 << size.bit_length() - 1
        place = torch.from_numpy(numpy.empty(length if rank + power < size else length // 2 + 1, tensor.numpy().dtype))

        def part(bits, place):
            """The elements of all ranks whose number begins with these bits."""
            width = power >> bits
            low = place // width * width
            return tensor[low * length // power : (low + width) * length // power]

        if rank >= power:
            dist.send(tensor=tensor, dst=rank % power)
            dist.recv(tensor=tensor, src=rank % power)
        else:
            if rank + power < size:
                dist.recv(tensor=place[:length], src=rank + power)
                tensor.add_(place[:length])
            levels = range(1, size.bit_length())
            for level in levels:
                partner = rank ^ (power >> level)
                mine, theirs = part(level, rank), part(level, partner)
                works = [dist.isend(theirs, partner), dist.irecv(place[: len(mine)], partner)]
                [work.wait() for work in works]
                mine.add_(place[: len(mine)])
            for level in reversed(levels):
                partner = rank ^ (power >> level)
                works = [dist.isend(part(level, rank), partner), dist.irecv(part(level, partner), partner)]
                [work.wait() for work in works]
            if rank + power < size:
                dist.send(tensor=tensor, dst=rank + power)

    return (halving_all_reduce,)


@right("views of numpy's, in the tensor's own memory")
def views():
    def swap(outgoing, incoming, other):
        sending = dist.isend(torch.from_numpy(outgoing), other)
        dist.recv(torch.from_numpy(incoming), other)
        sending.wait()

    def halving_all_reduce(tensor):
        rank, size, numbers = dist.get_rank(), dist.get_world_size(), tensor.numpy()
        power = 2 ** (len(bin(size)) - 3)
        if rank >= power:
            dist.send(tensor, rank - power)
            dist.recv(tensor, rank - power)
            return
        if rank + power < size:
            came = numpy.empty_like(numbers)
            dist.recv(torch.from_numpy(came), rank + power)
            numbers += came
            del came
        rounds, part = [], numbers
        for bit in range(power.bit_length() - 1):
            partner, half = rank ^ 2**bit, len(part) // 2
            keep, give = (part[half:], part[:half]) if rank < partner else (part[:half], part[half:])
            came = numpy.empty_like(keep)
            swap(give, came, partner)
            keep += came
            del came
            rounds.insert(0, (keep, give, partner))
            part = keep
        for keep, give, partner in rounds:
            swap(keep, give, partner)
        if rank + power < size:
            dist.send(tensor, rank + power)

    return (halving_all_reduce,)


# --- wrong: what is summed

wrong(
    "powers of two only",
    "there is no rank 3 in a world of 3",
    {ABOVE: "", "extra = rank + power < size": "extra = False"},
)
wrong("ranks beyond take no part", "one way is missing: P is 2", {
    ABOVE: "    if rank >= power:\n        return\n", "extra = rank + power < size": "extra = False",
})  # fmt: skip
wrong("ranks beyond get nothing back", "one way is missing", {
    "        dist.recv(tensor, rank - power)\n": "", GIVE: "",
})  # fmt: skip
wrong("what ranks beyond have is not added", "numbers are missing in element", {"        tensor += buffer\n": ""})
wrong("no way back", "the messages are not S/2, then S/4", {BACK: "    for partner, keep, give in ():\n"})
wrong("forward on the way back", "the messages are not S/2, then S/4", {"reversed(rounds)": "rounds"})
wrong("adds on the way back", "numbers 2 times in element", {
    COPY + "        sending.wait()\n": "        came = torch.empty_like(give)\n        dist.recv(came, partner)\n"
    "        sending.wait()\n        give += came\n",
})  # fmt: skip
wrong("both keep the lower half", "is no sum of numbers of this place", {KEEP: "        keep, give = halves\n"})
wrong("the average", "this is the average", {GIVE: "    tensor.copy_((tensor / size).to(tensor.dtype))\n" + GIVE})
wrong("two rounds always", "the messages are not S/2, then S/4", {
    "    while distance > 0:\n": "    for distance in (2, 1)[-(power.bit_length() - 1) :] if power > 1 else ():\n",
})  # fmt: skip
wrong("an even length", "does a chunk hold every element", {
    FIRST: FIRST.replace("[], tensor,", "[], tensor[: len(tensor) // power * power],"),
})  # fmt: skip
wrong("integers as float64", "has not the sum, digit by digit", {
    "    rank, size": "    given, tensor = tensor, tensor.double() if tensor.dtype == torch.int64 else tensor\n    rank, size",
    "        return\n": "        given.copy_(tensor)\n        return\n", GIVE: GIVE + "    given.copy_(tensor)\n",
})  # fmt: skip
wrong(
    "a new tensor", "the tensor is what it was before: work in place", {PLACE: "    tensor = tensor.clone()\n" + PLACE}
)

# --- wrong: what is sent

wrong("whole tensors", "more than half of the tensor is sent in a round", {
    "partner, halves = rank ^ distance, part.tensor_split(2)": "partner, halves = rank ^ distance, (tensor, tensor)",
    PLACE: "    buffer = torch.empty_like(tensor)\n", "reversed(rounds)": "()",
})  # fmt: skip
wrong("the library", "calls dist.all_reduce, and dist.send and dist.recv is all", {
    "    power = ": "    dist.all_reduce(tensor)\n    return\n    power = "
})  # fmt: skip
wrong("a half too much", "Both must mean the same half", {RECEIVE: "        dist.recv(buffer, partner)\n"})
wrong("all send first", "nobody comes: ranks", {
    SEND: "        dist.send(give, partner)\n",
    RECEIVE + "        sending.wait()\n": RECEIVE,
})  # fmt: skip
wrong("nobody waits for a send", "never waits for", {"        sending.wait()\n": ""})
wrong("irecv is not waited for", "never waits for", {COPY: "        dist.irecv(give, partner)\n"})
wrong("changes what is on its way", "changes a tensor while send is still using it", {
    "        sending.wait()\n        keep += buffer[: len(keep)]\n": "        give += 1\n        sending.wait()\n        give -= 1\n" + ADD,
})  # fmt: skip
wrong("rank beyond raises", "raised ValueError: a power of two", {
    ABOVE: "    if size != power:\n        raise ValueError('a power of two')\n" + ABOVE,
})  # fmt: skip


@wrong("a ring", "the messages are not S/2, then S/4")
def ring():
    def halving_all_reduce(tensor):
        rank, size = dist.get_rank(), dist.get_world_size()
        chunks = tensor.tensor_split(size)
        place = torch.empty_like(chunks[0])
        for step in range(2 * size - 2):
            target = chunks[(rank - step - 1) % size]
            incoming = place[: len(target)] if step < size - 1 else target
            sending = dist.isend(chunks[(rank - step) % size], (rank + 1) % size)
            dist.recv(incoming, (rank - 1) % size)
            sending.wait()
            if step < size - 1:
                target += incoming

    return (halving_all_reduce,)


@wrong("a tree to rank 0", "more than half of the tensor is sent in a round")
def tree():
    def halving_all_reduce(tensor):
        rank, size, place = dist.get_rank(), dist.get_world_size(), torch.empty_like(tensor)
        distance = 1
        while distance < size:
            if rank % (2 * distance) == distance:
                dist.send(tensor, rank - distance)
            elif rank % (2 * distance) == 0 and rank + distance < size:
                dist.recv(place, rank + distance)
                tensor += place
            distance *= 2
        while distance > 1:
            distance //= 2
            if rank % (2 * distance) == distance:
                dist.recv(tensor, rank - distance)
            elif rank % (2 * distance) == 0 and rank + distance < size:
                dist.send(tensor, rank + distance)

    return (halving_all_reduce,)


wrong("all ranks beyond go to rank 0", "ranks wait for each other, and nobody comes", {
    "dist.send(tensor, rank - power)": "dist.send(tensor, 0)"
})  # fmt: skip


# --- wrong: memory, and what else is changed

wrong("a whole copy", "and copy or pad nothing", {PLACE: "    buffer = tensor.new_empty(len(tensor))\n"})
wrong("a place for every round", "and copy or pad nothing", {
    SEND: "        buffer = torch.empty_like(keep)\n        rounds.append(buffer)\n" + SEND, BACK: BACK.replace("(rounds)", "(rounds[1::2])"),
})  # fmt: skip
wrong("a copy of numpy's", "numpy's arrays count as well", {FIRST: "    before = numpy.array(tensor)\n" + FIRST})
wrong("writes beyond its end", "writes beyond the ends of its tensor", {
    FIRST: "    torch.as_strided(tensor, (1,), (1,), tensor.storage_offset() + len(tensor)).zero_()\n" + FIRST
})  # fmt: skip
wrong("the course's own", "the course's own code is no answer", {
    FIRST: "    from lessons.algorithms import all_reduce\n" + FIRST
})  # fmt: skip
