"""Exercise 2 of the lab on all-reduces: a ring, in place. What is not here is in the official solution."""

import numpy
import torch
import torch.distributed as dist
from known_answers import right, wrong

DEF = "def ring_all_reduce(tensor):\n"
CUT = "    chunks = tensor.tensor_split(size)\n    buffer"
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


wrong(
    "the library",
    "calls all_reduce, and send and recv is all",
    {CUT: "    dist.all_reduce(tensor)\n    return\n" + CUT},
)
wrong("adds before the wait", "changes a tensor while send is still using it", {
    FIRST: FIRST.replace("        sending.wait", "        outgoing += 1\n        sending.wait") + "        outgoing -= 1\n"
})  # fmt: skip
wrong(
    "all send first",
    "wait in send",
    {FIRST: FIRST.replace("sending = dist.i", "dist.").replace("        sending.wait()\n", "")},
)
wrong("a place for every step", "add in place (chunk += received), copy nothing", {
    RECEIVE: "        kept = [] if step == 0 else kept\n        buffer = torch.empty_like(buffer)\n        kept.append(buffer)\n" + RECEIVE
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
