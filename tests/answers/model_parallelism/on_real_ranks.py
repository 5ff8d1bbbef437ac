"""Exercise 5 of the lab on model parallelism: a stage on each real rank, and messages between neighbours."""

import torch
import torch.distributed as dist
from known_answers import right, wrong


def schedule_1f1b(stage, p, m):
    warm_up = min(p - 1 - stage, m)
    order = [f"F{k}" for k in range(warm_up)]
    for k in range(m - warm_up):
        order += [f"F{warm_up + k}", f"B{k}"]
    return order + [f"B{k}" for k in range(m - warm_up, m)]


def pipeline_step(stage, shape, batch, targets, loss_fn, micro_batches):
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


EQUAL = {"8: arguments of `min(p - 1 - stage, m)` swapped": "the smaller one of two, in whichever order"}
RECV = "                dist.recv(x, rank - 1)\n"
OUT = "                sending.append(dist.isend(y.detach(), rank + 1))\n"
BACK = "                sending.append(dist.isend(x.grad, rank - 1))\n"
EMPTY = "torch.empty(sizes[k], *shape[1:], dtype=dtype)"
WEIGHT = " * sizes[k] / shape[0]"
WAIT = "    for work in sending:\n        work.wait()\n"
ORDER = "schedule_1f1b(rank, p, m)"
CIRCLE = "wait for each other, and nobody comes"


# --- right, and written differently


@right("three loops, sending and receiving in one go, as Megatron does it")
def as_megatron():
    def exchange(*operations):
        if operations:
            for work in dist.batch_isend_irecv(list(operations)):
                work.wait()

    def pipeline_step(stage, shape, batch, targets, loss_fn, micro_batches):
        me, n = dist.get_rank(), dist.get_world_size()
        first, last = me == 0, me == n - 1
        m, samples = micro_batches, shape[0]
        rows = [samples // m + (k < samples % m) for k in range(m)]
        starts = [sum(rows[:k]) for k in range(m)]
        kind = next(one.dtype for one in stage.parameters())
        total = torch.zeros((), dtype=kind)
        inputs, outputs, done = [], [], [0, 0]

        def room():
            return torch.zeros((rows[done[0]], *shape[1:]), dtype=kind)

        def forward(x):
            nonlocal total
            k = done[0]
            done[0] += 1
            x = batch[starts[k] : starts[k] + rows[k]] if first else x.requires_grad_(True)
            y = stage(x)
            if last:
                y = loss_fn(y, targets[starts[k] : starts[k] + rows[k]]) * (rows[k] / samples)
                total = total + y.detach()
            inputs.append(x)
            outputs.append(y)
            return y.detach()

        def backward(gradient):
            x, y = inputs.pop(0), outputs.pop(0)
            torch.autograd.backward([y], [gradient])
            return x.grad

        def receive_input():
            if first:
                return None
            x = room()
            exchange(dist.P2POp(dist.irecv, x, me - 1))
            return x

        warm_up = min(n - 1 - me, m)
        for _ in range(warm_up):
            y = forward(receive_input())
            exchange(dist.P2POp(dist.isend, y, me + 1))
        x = receive_input() if warm_up < m else None
        for i in range(m - warm_up):
            y, gradient = forward(x), None
            x = None
            if not last:
                gradient = torch.zeros_like(outputs[0])
                exchange(dist.P2POp(dist.isend, y, me + 1), dist.P2POp(dist.irecv, gradient, me + 1))
            g = backward(gradient)
            if not first:
                both = [dist.P2POp(dist.isend, g, me - 1)]
                if i < m - warm_up - 1:
                    x = room()
                    both.append(dist.P2POp(dist.irecv, x, me - 1))
                exchange(*both)
        for _ in range(warm_up):
            gradient = torch.zeros_like(outputs[0])
            dist.recv(gradient, me + 1)
            g = backward(gradient)
            if not first:
                dist.send(g, me - 1)
        return total if last else None

    return (pipeline_step,)


@right("a send keeps its own place and is waited for when the next one goes the same way; autograd.grad; tags")
def one_at_a_time():
    def pipeline_step(stage, shape, batch, targets, loss_fn, micro_batches):
        rank, size = dist.get_rank(), dist.get_world_size()
        on_the_way = {}

        def give(tensor, to, tag):
            if to in on_the_way:
                on_the_way.pop(to).wait()
            on_the_way[to] = dist.isend(tensor.clone(), dst=to, tag=tag)

        parameters = [q for q in stage.parameters() if q.requires_grad]
        dtype = parameters[0].dtype
        parts = torch.arange(shape[0]).tensor_split(micro_batches)
        graphs, loss = {}, torch.tensor(0.0, dtype=dtype)
        for item in schedule_1f1b(rank, size, micro_batches):
            k = int(item[1:])
            if item.startswith("F"):
                x = batch[parts[k]] if rank == 0 else torch.empty((len(parts[k]), *shape[1:]), dtype=dtype)
                if rank:
                    dist.recv(x, src=rank - 1, tag=k)
                x = x.requires_grad_(rank > 0)
                graphs[k] = x, stage(x)
                if rank + 1 < size:
                    give(graphs[k][1].detach(), rank + 1, k)
                continue
            x, y = graphs.pop(k)
            gradient = None
            if rank + 1 < size:
                gradient = y.detach().clone()
                dist.recv(gradient, src=rank + 1, tag=k)
            else:
                y = loss_fn(y, targets[parts[k]]) * (len(parts[k]) / shape[0])
                loss += y.detach()
            *found, to_give = torch.autograd.grad(y, [*parameters, *([x] if rank else [])], gradient) + (None,) * (
                not rank
            )
            for q, g in zip(parameters, found, strict=True):
                q.grad = g.clone() if q.grad is None else q.grad + g
            if rank:
                give(to_give, rank - 1, k)
            x = y = None
        for work in on_the_way.values():
            work.wait()
        return loss if rank == size - 1 else None

    return (pipeline_step,)


@right("small micro-batches first, receives posted a pass ahead, the group's own ranks")
def posted_ahead():
    def pipeline_step(stage, shape, batch, targets, loss_fn, micro_batches):
        group = dist.group.WORLD
        rank, p = group.rank(), group.size()
        samples = shape[0]
        cuts = [samples * k // micro_batches for k in range(micro_batches + 1)]
        like = next(iter(stage.parameters()))
        todo = schedule_1f1b(rank, p, micro_batches)
        open_ones, works, total = {}, [], []

        def post(item):
            k = int(item[1:])
            if item[0] == "F" and rank > 0:
                place = like.new_empty((cuts[k + 1] - cuts[k], *shape[1:]))
                return place, dist.irecv(place, rank - 1)
            if item[0] == "B" and rank < p - 1:
                place = torch.empty_like(open_ones[k][1])
                return place, dist.irecv(place, rank + 1)
            return None, None

        posted = post(todo[0])
        for number, item in enumerate(todo):
            place, arrival = posted
            if arrival is not None:
                arrival.wait()
            k, rows = int(item[1:]), slice(cuts[int(item[1:])], cuts[int(item[1:]) + 1])
            if item[0] == "F":
                x = batch[rows] if rank == 0 else place.requires_grad_()
                y = stage(x)
                if rank == p - 1:
                    y = loss_fn(y, targets[rows]) / samples * (rows.stop - rows.start)
                    total.append(y.item())
                else:
                    works.append(dist.isend(y.data, rank + 1))
                open_ones[k] = x, y
            else:
                x, y = open_ones.pop(k)
                y.backward(place)
                if rank:
                    works.append(dist.isend(x.grad, rank - 1))
            del x, y, place
            posted = post(todo[number + 1]) if number + 1 < len(todo) else None
        while works:
            works.pop().wait()
        return torch.tensor(sum(total), dtype=like.dtype) if rank == p - 1 else None

    return (pipeline_step,)


right("outputs are waited for, gradients run on", {
    "sending.append(dist.isend(y.detach(), rank + 1))": "dist.send(y.detach(), rank + 1)"
})  # fmt: skip
right("gradients are waited for, outputs run on", {
    "sending.append(dist.isend(x.grad, rank - 1))": "dist.isend(x.grad, rank - 1).wait()"
})  # fmt: skip

# --- wrong

wrong("send that waits", CIRCLE, {"sending.append(dist.isend(y.detach(), rank + 1))": "dist.send(y.detach(), rank + 1)",
                                  "sending.append(dist.isend(x.grad, rank - 1))": "dist.send(x.grad, rank - 1)"})  # fmt: skip
wrong("GPipe", "that is GPipe", {ORDER: '[f"F{k}" for k in range(m)] + [f"B{k}" for k in range(m)]'})
wrong("one after the other", "the other ranks have nothing to do", {
    ORDER: '[i for k in range(m) for i in (f"F{k}", f"B{k}")]'
})  # fmt: skip
wrong("every rank has the warm-up of the first", "in another order than 1F1B's list", {ORDER: "schedule_1f1b(0, p, m)"})
wrong("sends are not waited for", "never waits for", {WAIT: ""})
wrong("the last send is not waited for", "never waits for 1 of", {"in sending:\n": "in sending[:-1]:\n"})
wrong("receives are not waited for", "never waits for", {RECV: "                dist.irecv(x, rank - 1)\n"})
wrong("no weights", "each micro-batch counts fully", {WEIGHT: ""})
wrong("the mean of the means", "every micro-batch has the same weight", {WEIGHT: " / m"})
wrong(
    "gradients before are lost",
    "are lost: add to them",
    {"    kept, sending": "    stage.zero_grad()\n    kept, sending"},
)
wrong("the rest is left out", "which differ by at most one sample", {
    "[len(part) for part in torch.arange(shape[0]).tensor_split(m)]": "[shape[0] // m] * m",
    "batch.split(sizes)": "batch.split(sizes[0])", "targets.split(sizes)": "targets.split(sizes[0])",
})  # fmt: skip
wrong("the last one has the rest", "differ by at most one sample", {
    "[len(part) for part in torch.arange(shape[0]).tensor_split(m)]": "[shape[0] // m] * (m - 1) + [shape[0] - shape[0] // m * (m - 1)]"
})  # fmt: skip
wrong("always float32", "a message does not fit", {", dtype=dtype)": ")"})
wrong("two dimensions", "a message does not fit", {"*shape[1:]": "shape[-1]"})
wrong("the whole batch at once", "not one forward and one backward for each", {"micro_batches\n": "1\n"})
wrong("the last rank tells everybody", "calls dist.broadcast", {
    "    return sum": "    loss = sum(losses) if losses else torch.zeros((), dtype=dtype)\n    dist.broadcast(loss, last)\n    return sum"
})  # fmt: skip
wrong("a barrier at the end", "calls dist.barrier", {"    return sum": "    dist.barrier()\n    return sum"})
wrong("targets come round", "the last rank alone knows the loss", {
    "    return sum(losses) if rank == last else None": "    return sum(losses)"
})  # fmt: skip
wrong("the graph is kept", "keep a graph after its backward", {
    "y.backward(gradient)": "y.backward(gradient, retain_graph=True)", "kept.pop(k)": "kept[k]"
})  # fmt: skip
wrong("inputs are kept", "nothing may hold on to one", {
    "kept.pop(k)": "kept[k]"
})  # fmt: skip
wrong("gradients are sent at the end", CIRCLE, {
    BACK: "                sending.append(x.grad)\n", "sending.append(dist.isend(y.detach(), rank + 1))": "dist.isend(y.detach(), rank + 1)",
    WAIT: "    for one in sending:\n        dist.send(one, rank - 1)\n",
})  # fmt: skip
wrong("a loss that is a number", "as a tensor with one number", {"return sum(losses)": "return sum(losses).item()"})
wrong("the loss of the last micro-batch", "the loss that you return", {"return sum(losses)": "return losses[-1]"})
wrong("the loss keeps its graph", "with one number", {"sum(losses) if": "torch.stack(losses) if"})
wrong("forward is called past the hooks", "the stage runs", {"y = stage(x)": "y = stage.forward(x)"})
wrong("the output is changed while it is sent", "changes a tensor while send is still using it", {
    "            kept[k] = x, y\n": "            if rank < last:\n                y.data.mul_(2)\n            kept[k] = x, y\n"
})  # fmt: skip
wrong("evaluation mode", "in another mode", {"    kept, sending": "    stage.eval()\n    kept, sending"})
wrong("the batch is divided", "`batch` has other numbers", {
    "    kept, sending": "    if rank == 0:\n        batch.mul_(0.5)\n    kept, sending"
})  # fmt: skip
wrong("gradients go to the first rank", CIRCLE, {"dist.isend(x.grad, rank - 1)": "dist.isend(x.grad, 0)"})
wrong(
    "recomputed",
    "more than one forward",
    {
        "            x, y = kept.pop(k)\n": "            x, y = kept.pop(k)\n            y = stage(x) if rank < last else y\n"
    },
)
wrong("rank 0 hears of the loss", "these are not the gradients for rank 0", {
    "    return sum": "    if rank == last:\n        dist.send(sum(losses), 0)\n    if rank == 0:\n"
    "        dist.recv(torch.zeros((), dtype=dtype), last)\n    return sum"
})  # fmt: skip
wrong("sizes are sent along", "these are not the outputs for rank 1", {
    OUT: "                sending.append(dist.isend(torch.tensor(y.shape[0]), rank + 1))\n" + OUT,
    RECV: "                dist.recv(torch.tensor(0), rank - 1)\n" + RECV,
})  # fmt: skip
wrong(
    "with tensors' own words",
    "pipelining",
    {"    kept, sending": "    from torch.distributed.pipelining import PipelineStage\n    kept, sending"},
)


FLUSH = """
    def flush():
        while waiting:
            sending.append(dist.isend(*waiting.pop(0)))

"""
wrong("sent a pass late", "begins another pass first", {
    "losses = {}, [], []\n": "losses, waiting = {}, [], [], []\n" + FLUSH, WAIT: "    flush()\n" + WAIT,
    "y = stage(x)\n": "y = stage(x)\n            flush()\n", "x, y = kept.pop(k)\n": "flush()\n            x, y = kept.pop(k)\n",
    OUT: "                waiting.append((y.detach(), rank + 1))\n",
})  # fmt: skip
wrong("a warm-up longer than there are micro-batches", "IndexError", {"min(p - 1 - stage, m)": "p - 1 - stage"})
wrong("the last input stays", "is still held: nothing of them may stay", {
    "            kept[k] = x, y\n": "            kept[k] = x, y\n            pipeline_step.last = x\n"
})  # fmt: skip
