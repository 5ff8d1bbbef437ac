"""Exercise 2 of the lab on all-reduces: a ring, in place."""

# ruff: noqa: F401 (modules that changed answers use)
import mmap

import numpy
import torch
import torch.distributed as dist
from known_answers import right, wrong


def ring_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    chunks = tensor.tensor_split(size)
    buffer = torch.empty_like(chunks[0])
    for step in range(size - 1):  # reduce-scatter
        outgoing, target = chunks[(rank - step) % size], chunks[(rank - step - 1) % size]
        sending = dist.isend(outgoing, right)
        dist.recv(buffer[: len(target)], left)
        sending.wait()
        target += buffer[: len(target)]
    for step in range(size - 1):  # all-gather
        sending = dist.isend(chunks[(rank - step + 1) % size], right)
        dist.recv(chunks[(rank - step) % size], left)
        sending.wait()


ADD = "        target += buffer[: len(target)]\n"
CUT = "    chunks = tensor.tensor_split(size)\n"
PLACE = "    buffer = torch.empty_like(chunks[0])\n"
RECEIVE = "        dist.recv(buffer[: len(target)], left)\n"
SECOND = "        dist.recv(chunks[(rank - step) % size], left)\n        sending.wait()\n"
STEPS = "    for step in range(size - 1):  # all-gather\n"


# --- right, and written differently


@right("batches, chunks of the largest size, empty ones left out")
def batched():
    def step(outgoing, incoming, rank, size):
        operations = []
        if outgoing.numel():
            operations.append(dist.P2POp(dist.isend, outgoing, (rank + 1) % size))
        if incoming.numel():
            operations.append(dist.P2POp(dist.irecv, incoming, (rank - 1) % size))
        for work in dist.batch_isend_irecv(operations) if operations else []:
            work.wait()

    def ring_all_reduce(tensor):
        rank, size = dist.get_rank(), dist.get_world_size()
        per_chunk = -(-len(tensor) // size)
        chunks = [tensor[i * per_chunk : (i + 1) * per_chunk] for i in range(size)]
        place = torch.zeros(per_chunk, dtype=tensor.dtype)
        position = rank - 1
        for _ in range(size - 1):
            outgoing, position = chunks[position % size], position - 1
            incoming = place[: len(chunks[position % size])]
            step(outgoing, incoming, rank, size)
            chunks[position % size].add_(incoming)
        for _ in range(size - 1):
            outgoing, position = chunks[position % size], position - 1
            step(outgoing, chunks[position % size], rank, size)

    return (ring_all_reduce,)


@right("blocking calls: even ranks send first, odd ranks receive first")
def even_and_odd():
    def ring_all_reduce(tensor):
        size, me = dist.get_world_size(), dist.get_rank()
        right, left = (me + 1) % size, (me - 1) % size
        chunks = tensor.tensor_split(size)
        place = torch.empty_like(chunks[0])

        def exchange(outgoing, incoming):
            if me % 2 == 0:
                dist.send(outgoing, right)
                dist.recv(incoming, left)
            else:
                dist.recv(incoming, left)
                dist.send(outgoing, right)

        for step in range(1, size):
            mine, theirs = chunks[(me - step + 1) % size], chunks[(me - step) % size]
            exchange(mine, place[: theirs.numel()])
            theirs += place[: theirs.numel()]
        for step in range(1, size):
            exchange(chunks[(me - step + 2) % size], chunks[(me - step + 1) % size])
        return tensor

    return (ring_all_reduce,)


@right("a place of numpy's, slices, and receives that are begun first")
def slices():
    def ring_all_reduce(tensor):
        rank, size, length = dist.get_rank(), dist.get_world_size(), tensor.numel()
        if size == 1:
            return
        edges = [number * length // size for number in range(size + 1)]

        def part(number):
            return tensor.narrow(0, edges[number % size], edges[number % size + 1] - edges[number % size])

        largest = max(edges[number + 1] - edges[number] for number in range(size))
        place = torch.from_numpy(numpy.empty(largest, dtype=tensor.numpy().dtype))
        for number in range(2 * size - 2):
            mine, theirs = part(rank - number), part(rank - number - 1)
            adds = number < size - 1
            incoming = place.narrow(0, 0, theirs.numel()) if adds else theirs
            receiving = dist.irecv(tensor=incoming, src=(rank - 1) % size)
            sending = dist.isend(tensor=mine, dst=(rank + 1) % size)
            receiving.wait()
            sending.wait()
            if adds:
                theirs.copy_(torch.add(theirs, incoming, out=incoming))

    return (ring_all_reduce,)


@right("two rounds of one function, from any source, without grad")
def one_round():
    @torch.no_grad()
    def turn(parts, number, place):
        rank, size = dist.get_rank(), dist.get_world_size()
        for step in range(size - 1):
            work = dist.isend(parts[(number - step) % size], (rank + 1) % size, group=dist.group.WORLD)
            target = parts[(number - step - 1) % size]
            if place is None:
                dist.recv(target)
            else:
                dist.recv(place[: target.shape[0]])
                target.add_(place[: target.shape[0]])
            work.wait()

    def ring_all_reduce(tensor):
        parts = torch.tensor_split(tensor, dist.get_world_size())
        turn(parts, dist.get_rank(), tensor.new_empty(parts[0].shape))
        turn(parts, dist.get_rank() + 1, None)

    return (ring_all_reduce,)


@right("views of numpy's, in the tensor's own memory")
def views():
    def ring_all_reduce(tensor):
        rank, size = dist.get_rank(), dist.get_world_size()
        views = numpy.array_split(tensor.numpy(), size)
        buffer = numpy.empty_like(views[0])
        for copies in (0, 1):
            for step in range(size - 1):
                target = views[(rank - step - 1 + copies) % size]
                incoming = target if copies else buffer[: len(target)]
                sending = dist.isend(torch.from_numpy(views[(rank - step + copies) % size]), (rank + 1) % size)
                dist.recv(torch.from_numpy(incoming), (rank - 1) % size)
                sending.wait()
                if not copies:
                    target += incoming

    return (ring_all_reduce,)


# --- wrong: what is summed

wrong("adds in the second phase", "only overwrite in the second phase", {
    SECOND: "        target = chunks[(rank - step) % size]\n" + RECEIVE + "        sending.wait()\n" + ADD
})  # fmt: skip
wrong("the average", "this is the average", {SECOND: SECOND + "    tensor.copy_((tensor / size).to(tensor.dtype))\n"})
wrong("the first phase is too short", "numbers are missing in element", {
    "range(size - 1):  # r": "range(size - 2):  # r"
})  # fmt: skip
wrong("the second phase is too short", "does the last phase hand all finished chunks out?", {
    STEPS: STEPS.replace("size - 1", "size - 2")
})  # fmt: skip
wrong("one chunk off in the second phase", "numbers are missing in element", {
    "chunks[(rank - step + 1) % size], right": "chunks[(rank - step) % size], right",
    "dist.recv(chunks[(rank - step) % size]": "dist.recv(chunks[(rank - step - 1) % size]",
})  # fmt: skip
wrong("asks for ever whether a message is over", "asks is_completed() of a message for ever", {
    RECEIVE: "        receiving = dist.irecv(buffer[: len(target)], left)\n"
             "        while not receiving.is_completed():\n            pass\n"
})  # fmt: skip
wrong("what does not fit is left out", "the last elements are not added", {
    CUT: "    chunks = tensor[: len(tensor) // size * size].tensor_split(size)\n"
})  # fmt: skip
wrong("three chunks always", "raised IndexError", {CUT: "    chunks = tensor.tensor_split(min(size, 3))\n"})
wrong("chunk", "raised IndexError", {"tensor.tensor_split(size)": "tensor.chunk(size)"})
wrong("in float32", "times what rounding explains", {
    "target += buffer[: len(target)]": "target.copy_(target.float() + buffer[: len(target)].float() if target.dtype == "
    "torch.float64 else target + buffer[: len(target)])"
})  # fmt: skip
wrong("integers as float64", "has not the sum, digit by digit", {
    "    rank, size": "    given, tensor = tensor, tensor.double() if tensor.dtype == torch.int64 else tensor\n    rank, size",
    SECOND: SECOND + "    given.copy_(tensor)\n",
})  # fmt: skip
wrong("a new tensor", "the tensor is what it was before: work in place", {
    CUT: "    tensor = tensor.clone()\n" + CUT
})  # fmt: skip
wrong("numbers of the last call", "numbers are missing in element", {
    PLACE: "    buffer = places.setdefault((len(chunks[0]), tensor.dtype), torch.zeros_like(chunks[0]))\n",
    RECEIVE: "        dist.recv(torch.empty_like(target), left)\n", "def ring": "places = {}\n\n\ndef ring",
})  # fmt: skip


# --- wrong: what is sent

wrong(
    "the library",
    "calls dist.all_reduce, and dist.send and dist.recv is all",
    {CUT: "    dist.all_reduce(tensor)\n    return\n"},
)
wrong("another chunk is received", "Both must mean the same chunk", {"(rank - step - 1)": "(rank - step + 1)"})
wrong("too much into a larger place", "Both must mean the same chunk", {
    RECEIVE: "        dist.recv(buffer, left)\n"
})  # fmt: skip
wrong("to the left", "your ring runs to the left", {
    "right, left = (rank + 1) % size, (rank - 1) % size": "right, left = (rank - 1) % size, (rank + 1) % size",
    "rank - step - 1": "rank + step + 1", "rank - step + 1": "rank + step - 1", "rank - step": "rank + step",
})  # fmt: skip
wrong("to the left in the second phase", "in a ring rank r sends to rank r + 1 only", {
    STEPS: "    right, left = left, right\n" + STEPS, "rank - step + 1": "rank + step + 1",
    "dist.recv(chunks[(rank - step)": "dist.recv(chunks[(rank + step + 2)",
})  # fmt: skip
wrong("one step too many", "sends more often than a ring needs", {
    STEPS: "    for step in range(size if size > 1 else 0):\n"
})  # fmt: skip
wrong("nobody waits for a send", "never waits for", {"        sending.wait()\n": ""})
wrong("adds before the wait", "changes a tensor while send is still using it", {
    "        sending.wait()\n" + ADD: "        outgoing += 0 * outgoing + 1\n        sending.wait()\n        outgoing -= 1\n" + ADD
})  # fmt: skip
wrong("irecv is not waited for", "never waits for", {"dist.recv(": "dist.irecv("})
wrong("all send first", "nobody comes: ranks 0, 1, 2, 3, 4 wait in send", {
    "sending = dist.isend": "dist.send", "        sending.wait()\n": ""
})  # fmt: skip
wrong("all receive first", "nobody comes: ranks 0, 1, 2, 3, 4 wait in recv", {
    "        sending = dist.isend(outgoing, right)\n": "", RECEIVE: RECEIVE + "        sending = dist.isend(outgoing, right)\n"
})  # fmt: skip
wrong(
    "alone, it sends to itself",
    "with world size 1 there is nothing to send",
    {"range(size - 1)": "range(max(size - 1, 1))"},
)
wrong("rank 0 raises", "raised ValueError: no", {STEPS: "    if rank == 0:\n        raise ValueError('no')\n" + STEPS})


@wrong("whole tensors", "sends the whole tensor in one message")
def whole_tensors():
    def ring_all_reduce(tensor):
        rank, size = dist.get_rank(), dist.get_world_size()
        latest, place = tensor.clone(), torch.empty_like(tensor)
        for _ in range(size - 1):
            sending = dist.isend(latest, (rank + 1) % size)
            dist.recv(place, (rank - 1) % size)
            sending.wait()
            tensor += place
            latest, place = place, latest

    return (ring_all_reduce,)


@wrong("all to rank 0", "in a ring rank r sends to rank r + 1 only")
def all_to_rank_0():
    def ring_all_reduce(tensor):
        rank, size = dist.get_rank(), dist.get_world_size()
        if rank > 0:
            dist.send(tensor, 0)
            dist.recv(tensor, 0)
            return
        place = torch.empty_like(tensor)
        for other in range(1, size):
            dist.recv(place, other)
            tensor += place
        for other in range(1, size):
            dist.send(tensor, other)

    return (ring_all_reduce,)


wrong("two ranks swap whole tensors", "sends the whole tensor in one message", {
    CUT: "    if size == 2:\n        other = torch.empty_like(tensor)\n        sending = dist.isend(tensor, right)\n"
    "        dist.recv(other, left)\n        sending.wait()\n        tensor += other\n        return\n" + CUT
})  # fmt: skip


# --- wrong: memory, and what else is changed

wrong("a place for every step", "add in place (chunk += received), and copy or pad nothing", {
    PLACE: "    buffers = [torch.empty_like(chunks[0]) for _ in chunks]\n",
    RECEIVE: "        buffer = buffers[step]\n" + RECEIVE
})  # fmt: skip
wrong("a padded copy", "sends more than it has to with send", {
    CUT: "    given, tensor = tensor, torch.cat([tensor, tensor.new_zeros(-len(tensor) % size)])\n" + CUT,
    SECOND: SECOND + "    given.copy_(tensor[: len(given)])\n",
})  # fmt: skip
wrong("a sum beside it", "and copy or pad nothing", {ADD: "        target.copy_(target + buffer[: len(target)])\n"})
wrong("a copy of numpy's", "numpy's arrays count as well", {CUT: "    before = numpy.array(tensor)\n" + CUT})
wrong("writes beyond its end", "writes beyond the ends of its tensor", {
    CUT: "    torch.as_strided(tensor, (1,), (1,), tensor.storage_offset() + len(tensor)).zero_()\n" + CUT
})  # fmt: skip
wrong("seeds", "leaves torch's random numbers other than before", {CUT: "    torch.manual_seed(0)\n" + CUT})
wrong(
    "the course's own",
    "the course's own code is no answer",
    {CUT: "    from lessons.algorithms import all_reduce\n" + CUT},
)
wrong("chunks of every size-th number", "input tensor has to be contiguous", {
    CUT: "    chunks = [tensor[first::size] for first in range(size)]\n"
})  # fmt: skip
wrong("views of the tensor stay on the function", "with the next tensor a rank holds two", {
    CUT: CUT + "    ring_all_reduce.chunks = chunks\n"
})  # fmt: skip
wrong("a tensor at the same place as one before", "the second call with the same tensor", {
    "def ring": "done = set()\n\n\ndef ring",
    CUT: "    if tensor.data_ptr() in done:\n        return\n    done.add(tensor.data_ptr())\n" + CUT,
})  # fmt: skip
wrong("a copy in a map of memory", "numpy's arrays count as well", {
    CUT: "    copy = mmap.mmap(-1, tensor.nbytes + 1)\n    copy.write(tensor.numpy())\n" + CUT
})  # fmt: skip
wrong("the largest place so far", "more than its tensor and one part of it is held", {
    "    buffer = torch.empty_like(chunks[0])\n": "    kept, need = ring_all_reduce.__dict__.setdefault('kept', {}), len(chunks[0])\n"
    "    if tensor.dtype not in kept or len(kept[tensor.dtype]) < need:\n"
    "        kept[tensor.dtype] = torch.empty_like(chunks[0])\n    buffer = kept[tensor.dtype]\n"
})  # fmt: skip
