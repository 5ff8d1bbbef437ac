"""Blocking calls only: even ranks send first, odd ranks receive first. Of two even neighbours, one waits a little."""


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
