import torch


import torch.distributed as dist


from utils import draw


from checks.labs import parameter_server_and_all_reduce as check


def check_length(tensor):
    ### BEGIN SOLUTION
    rank, size = dist.get_rank(), dist.get_world_size()
    lengths = [torch.tensor([tensor.numel()]) for _ in range(size)]
    for step in range(size - 1):
        sending = dist.isend(lengths[(rank - step) % size], (rank + 1) % size)
        dist.recv(lengths[(rank - step - 1) % size], (rank - 1) % size)
        sending.wait()
    everyone = [length.item() for length in lengths]
    if len(set(everyone)) > 1:
        raise ValueError(f"all ranks need tensors of the same length, but they have {everyone}")


def ring_all_reduce(tensor):
    ### BEGIN SOLUTION
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


def halving_all_reduce(tensor):
    ### BEGIN SOLUTION
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


def around(chunks, members, first, add):
    me, size = members.index(dist.get_rank()), len(members)
    buffer = torch.empty_like(chunks[0])
    for step in range(size - 1):
        outgoing, target = chunks[(first - step) % size], chunks[(first - step - 1) % size]
        incoming = buffer[: len(target)] if add else target
        sending = dist.isend(outgoing, members[(me + 1) % size])
        dist.recv(incoming, members[me - 1])
        sending.wait()
        if add:
            target += incoming


def hierarchical_all_reduce(tensor, nodes, per_node):
    ### BEGIN SOLUTION
    node, local = divmod(dist.get_rank(), per_node)
    inside = [node * per_node + k for k in range(per_node)]
    partners = [n * per_node + local for n in range(nodes)]
    shares = tensor.tensor_split(per_node)
    chunks = shares[(local + 1) % per_node].tensor_split(nodes)
    around(shares, inside, local, add=True)
    around(chunks, partners, node, add=True)
    around(chunks, partners, node + 1, add=False)
    around(shares, inside, local + 1, add=False)


class Server:
    def __init__(self, weights, workers, bound, lr):
        ### BEGIN SOLUTION
        self.weights, self.bound, self.lr = weights, bound, lr
        self.steps = [0] * workers  # pushed by each worker
        self.updates = 0
        self.updates_at_pull = [0] * workers
        ### END SOLUTION

    def pull(self, worker):
        ### BEGIN SOLUTION
        if self.steps[worker] - min(self.steps) > self.bound:
            return None
        self.updates_at_pull[worker] = self.updates
        return self.weights
        ### END SOLUTION

    def push(self, worker, gradient):
        ### BEGIN SOLUTION
        staleness = self.updates - self.updates_at_pull[worker]
        self.weights = self.weights - self.lr * gradient  # a new tensor: who holds the old one keeps it
        self.updates += 1
        self.steps[worker] += 1
        return staleness


import heapq


def race(bound, seconds=(1, 1, 8), end=48):
    server, spans, stale = Server(torch.zeros(1), len(seconds), bound, 0.1), [], []
    asking, working = set(range(len(seconds))), []
    now = 0
    while True:
        for worker in sorted(asking):
            if server.pull(worker) is not None:
                asking.discard(worker)
                heapq.heappush(working, (now + seconds[worker], worker))
                spans.append(
                    draw.Span(f"worker {worker}", now, now + seconds[worker], "compute", f"{server.steps[worker]}")
                )
        now, worker = heapq.heappop(working)
        if now > end:
            return [span for span in spans if span.end <= end], stale
        stale.append(server.push(worker, torch.ones(1)))
        asking.add(worker)
