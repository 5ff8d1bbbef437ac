import contextlib


import itertools


import torch


import torch.distributed as dist


from torch import nn


import simgpu


from utils import draw, launch


from checks.labs import model_parallelism as check


def balance(costs, p):
    ### BEGIN SOLUTION
    best = []
    for cuts in itertools.combinations(range(1, len(costs)), p - 1):
        stages = list(itertools.pairwise([0, *cuts, len(costs)]))
        largest = max(sum(costs[begin:end]) for begin, end in stages)
        if not best or largest < best[0]:
            best = [largest, [end - begin for begin, end in stages]]
    return best[1]


def make_stages(pieces, p):
    ### BEGIN SOLUTION
    costs = [sum(parameter.nbytes for parameter in piece.parameters()) for piece in pieces]
    stages, rest = [], list(pieces)
    for i, count in enumerate(balance(costs, p)):
        stages.append(nn.Sequential(*rest[:count]).to(f"simgpu:{i}"))
        rest = rest[count:]
    return stages


def gpipe_step(stages, batch, targets, loss_fn, micro_batches):
    ### BEGIN SOLUTION
    losses = []
    for x, y in zip(batch.tensor_split(micro_batches), targets.tensor_split(micro_batches), strict=True):
        for i, stage in enumerate(stages):
            x = stage(x.to(f"simgpu:{i}"))
        losses.append(loss_fn(x, y) * len(y) / len(targets))
    for loss in losses:
        loss.backward()
    return sum(loss.detach() for loss in losses)


class Stage(nn.Sequential):
    """Its passes have names in the picture: F0, F1, B0, …"""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.numbers, self.backwards = itertools.count(), contextlib.ExitStack()

    def forward(self, x):
        k = next(self.numbers)
        with simgpu.region(f"F{k}"):
            y = super().forward(x)
        y.register_hook(lambda gradient: self.begin(f"B{k}", gradient.device))
        return y

    def begin(self, name, gpu):
        """What the GPU does from here on has this name."""
        with torch.simgpu.device(gpu):
            self.backwards.enter_context(simgpu.region(name))


def look(step, title):
    """A timeline of one step with 4 GPUs and 8 micro-batches."""
    simgpu.cluster(gpus_per_node=4, gpu="H100", numbers=False)  # shapes only: a large model in a moment
    layers = [nn.Sequential(nn.Linear(2048, 2048), nn.Tanh()) for _ in range(16)]
    stages = [Stage(*layers[4 * i : 4 * i + 4]).to(f"simgpu:{i}") for i in range(4)]
    batch, targets = (torch.randn(8 * 2048, 2048, device=f"simgpu:{i}") for i in (0, 3))
    try:
        with simgpu.profile() as prof:
            step(stages, batch, targets, nn.functional.mse_loss, 8)
    except NotImplementedError:
        return "not written yet"
    gib = prof.peak_memory(0) / 2**30
    return prof.timeline(links=False, host=False, title=f"{title}: at most {gib:.2f} GiB on GPU 0")


def example(lane, *passes):
    roles = {"F": "forward", "B": "backward"}
    lengths = {"F": 1, "B": 2}
    return [draw.Span(lane, start, start + lengths[p[0]], roles[p[0]], p) for p, start in passes]


def schedule_1f1b(stage, p, m):
    ### BEGIN SOLUTION
    warm_up = min(p - 1 - stage, m)
    order = [f"F{k}" for k in range(warm_up)]
    for k in range(m - warm_up):
        order += [f"F{warm_up + k}", f"B{k}"]
    return order + [f"B{k}" for k in range(m - warm_up, m)]


def send(tensor, gpu):
    """Copy a tensor to another GPU. Neither of them stops its other work. Returns a message for receive."""
    outgoing, incoming = torch.simgpu.Stream(tensor.device), torch.simgpu.Stream(gpu)
    outgoing.wait_stream(torch.simgpu.current_stream(tensor.device))  # the tensor must be computed
    with torch.simgpu.stream(outgoing), torch.simgpu.stream(incoming):
        copy = tensor.to(gpu)
    return copy, incoming.record_event()


def receive(message):
    """The tensor. What the GPU is given from here on begins when the tensor is there."""
    copy, arrived = message
    torch.simgpu.current_stream(copy.device).wait_event(arrived)
    return copy


def send_to_a_busy_gpu(copy, title):
    simgpu.cluster(gpus_per_node=2, gpu="H100", numbers=False)
    a, b = (torch.ones(4096, 4096, device=f"simgpu:{i}") for i in (0, 1))
    with simgpu.profile() as prof:
        b @ b @ b @ b  # GPU 1: three products
        copy(a @ a, "simgpu:1")  # GPU 0: one product, sent to GPU 1
        with simgpu.region("one more"):
            a @ a  # GPU 0: one more
    spans = prof.spans(links=False, host=False)
    return draw.timeline(spans, start=0, end=0.012, until=prof.elapsed, title=title, caption=prof.caption)


def one_f_one_b_step(stages, batch, targets, loss_fn, micro_batches):
    ### BEGIN SOLUTION
    p, m = len(stages), micro_batches
    xs, ys = batch.tensor_split(m), targets.tensor_split(m)
    todo = [schedule_1f1b(i, p, m) for i in range(p)]
    inbox, kept, losses = {}, {}, []

    def forward(i, k):
        x = receive(inbox.pop((i, f"F{k}"))).requires_grad_() if i > 0 else xs[k]
        y = stages[i](x)
        if i < p - 1:
            inbox[i + 1, f"F{k}"] = send(y.detach(), f"simgpu:{i + 1}")
        else:
            y = loss_fn(y, ys[k]) * len(ys[k]) / len(targets)
            losses.append(y.detach())
        kept[i, k] = x, y

    def backward(i, k):
        x, y = kept.pop((i, k))
        y.backward(receive(inbox.pop((i, f"B{k}"))) if i < p - 1 else None)
        if i > 0:
            inbox[i - 1, f"B{k}"] = send(x.grad, f"simgpu:{i - 1}")

    while any(todo):
        for i in range(p):
            if todo[i]:
                kind, k = todo[i][0][0], int(todo[i][0][1:])
                begins_here = i == (0 if kind == "F" else p - 1)
                if begins_here or (i, todo[i][0]) in inbox:
                    todo[i].pop(0)
                    forward(i, k) if kind == "F" else backward(i, k)
    return sum(losses)


def pipeline_step(stage, shape, batch, targets, loss_fn, micro_batches):
    ### BEGIN SOLUTION
    rank, p, m = dist.get_rank(), dist.get_world_size(), micro_batches
    last, dtype = p - 1, next(stage.parameters()).dtype
    sizes = [len(part) for part in torch.arange(shape[0]).tensor_split(m)]
    xs = batch.split(sizes) if rank == 0 else None
    ys = targets.split(sizes) if rank == last else None
    kept, sending, losses = {}, [], []
    for item in schedule_1f1b(rank, p, m):
        kind, k = item[0], int(item[1:])
        if kind == "F":
            if rank == 0:
                x = xs[k]
            else:
                x = torch.empty(sizes[k], *shape[1:], dtype=dtype)
                dist.recv(x, rank - 1)
                x.requires_grad_()
            y = stage(x)
            if rank < last:
                sending.append(dist.isend(y.detach(), rank + 1))
            else:
                y = loss_fn(y, ys[k]) * sizes[k] / shape[0]
                losses.append(y.detach())
            kept[k] = x, y
        else:
            x, y = kept.pop(k)
            gradient = None
            if rank < last:
                gradient = torch.empty_like(y)
                dist.recv(gradient, rank + 1)
            y.backward(gradient)
            if rank > 0:
                sending.append(dist.isend(x.grad, rank - 1))
    for work in sending:
        work.wait()
    return sum(losses) if rank == last else None


def look_at_ranks(step):
    """On a rank: the order of its passes, and whether its gradients are those of one process."""
    rank, p = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same model and the same data on all ranks
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(p)))
    batch, targets, order = torch.randn(10, 8), torch.randn(10, 8), []
    nn.functional.mse_loss(model(batch), targets).backward()
    right = [parameter.grad.clone() for parameter in model[rank].parameters()]
    model.zero_grad()

    def note(stage, inputs, output):
        order.append("F")
        output.register_hook(lambda gradient: order.append("B"))

    model[rank].register_forward_hook(note)
    mine = batch if rank == 0 else None, targets if rank == p - 1 else None
    try:
        step(model[rank], batch.shape, *mine, nn.functional.mse_loss, 4)
    except NotImplementedError:
        return "not written yet"
    pairs = zip(model[rank].parameters(), right, strict=True)
    equal = all(torch.allclose(parameter.grad, one, atol=1e-6) for parameter, one in pairs)
    return f"{' '.join(order)}   gradients as of one process: {equal}"
