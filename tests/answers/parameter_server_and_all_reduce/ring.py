"""Exercise 2 of the lab on all-reduces: a ring, in place. What is not here is in the official solution."""

import numpy
import torch
import torch.distributed as dist
from known_answers import right, wrong

DEF = "def ring_all_reduce(tensor):\n"
CUT = "    chunks = tensor.tensor_split(size)\n    buffer"
ADD = "        target += buffer[: len(target)]\n"
RECEIVE = "        dist.recv(buffer[: len(target)], left)\n"
FIRST = "        sending = dist.isend(outgoing, right)\n" + RECEIVE + "        sending.wait()\n"
COPY = "        dist.recv(chunks[(rank - step) % size], left)\n"
SECOND = "        sending = dist.isend(chunks[(rank - step + 1) % size], right)\n" + COPY + "        sending.wait()"
BATCH = """def exchange(outgoing, incoming, right, left):
    operations = [(dist.isend, outgoing, right), (dist.irecv, incoming, left)]
    operations = [dist.P2POp(*one) for one in operations if one[1].numel()]
    for work in dist.batch_isend_irecv(operations) if operations else []:
        work.wait()


"""
BLOCKING = """def exchange(outgoing, incoming, right, left):
    if dist.get_rank() % 2:
        dist.recv(incoming, left)
    dist.send(outgoing, right)
    if dist.get_rank() % 2 == 0:
        dist.recv(incoming, left)


"""
EXCHANGED = {
    FIRST: "        exchange(outgoing, buffer[: len(target)], right, left)\n",
    SECOND: "        exchange(chunks[(rank - step + 1) % size], chunks[(rank - step) % size], right, left)",
}
right("batches, chunks of the largest size, empty ones left out", {
    DEF: BATCH + DEF, **EXCHANGED,
    CUT: "    each = -(-len(tensor) // size)\n    chunks = [tensor[i * each : (i + 1) * each] for i in range(size)]\n    buffer",
})  # fmt: skip
right("blocking calls: even ranks send first, odd ranks receive first", {DEF: BLOCKING + DEF, **EXCHANGED})
right("from any source, without grad", {
    DEF: "@torch.no_grad()\n" + DEF, RECEIVE: RECEIVE.replace(", left", ""), COPY: COPY.replace(", left", "")
})  # fmt: skip


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


wrong("asks for ever whether a message is over", "asks is_completed() of a message for ever", {
    RECEIVE: "        receiving = dist.irecv(buffer[: len(target)], left)\n"
             "        while not receiving.is_completed():\n            pass\n"
})  # fmt: skip
wrong("chunk", "raised IndexError", {CUT: CUT.replace("tensor_split", "chunk")})
wrong(
    "the library",
    "calls all_reduce, and send and recv is all",
    {CUT: "    dist.all_reduce(tensor)\n    return\n" + CUT},
)
wrong(
    "too much into a larger place", "a message does not fit the place", {RECEIVE: "        dist.recv(buffer, left)\n"}
)
wrong("to the left", "your ring runs to the left", {
    "right, left = (rank + 1) % size, (rank - 1) % size": "right, left = (rank - 1) % size, (rank + 1) % size",
    "rank - step - 1": "rank + step + 1", "rank - step + 1": "rank + step - 1", "rank - step": "rank + step",
})  # fmt: skip
wrong("adds before the wait", "changes a tensor while send is still using it", {
    FIRST: FIRST.replace("        sending.wait", "        outgoing += 1\n        sending.wait") + "        outgoing -= 1\n"
})  # fmt: skip
wrong("irecv is not waited for", "never waits for", {RECEIVE: RECEIVE.replace("recv", "irecv")})
wrong(
    "all send first",
    "wait in send",
    {FIRST: FIRST.replace("sending = dist.i", "dist.").replace("        sending.wait()\n", "")},
)
wrong("a place for every step", "add in place (chunk += received), copy nothing", {
    RECEIVE: "        kept = [] if step == 0 else kept\n        buffer = torch.empty_like(buffer)\n        kept.append(buffer)\n" + RECEIVE
})  # fmt: skip
wrong("a copy of numpy's", "numpy's arrays count as well", {
    CUT: "    before = __import__('numpy').array(tensor)\n" + CUT, SECOND: SECOND + "\n    del before"
})  # fmt: skip


@wrong("whole tensors", "the whole tensor is sent in one message")
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
