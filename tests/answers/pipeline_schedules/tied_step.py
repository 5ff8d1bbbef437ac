"""Exercise 3 of the lab on pipeline schedules: one table at both ends. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong


@right("1F1B, sends that are waited for at the end")
def one_f_one_b():
    def tied_step(table, block, tokens, targets, micro_batches, ends):
        rank, size = dist.get_rank(), dist.get_world_size()
        last, works, alive = size - 1, [], []
        tokens, targets = tokens.chunk(micro_batches), targets.chunk(micro_batches)
        ins, outs, loss = {}, {}, 0

        def send(tensor, to):
            alive.append(tensor.detach().clone())
            works.append(dist.isend(alive[-1], to))

        def forward(i):
            nonlocal loss
            if rank:
                ins[i] = torch.empty((*tokens[i].shape, table.shape[1]), dtype=table.dtype)
                dist.recv(ins[i], rank - 1)
                ins[i].requires_grad_()
            else:
                ins[i] = table[tokens[i]]
            outs[i] = block(ins[i])
            if rank < last:
                send(outs[i], rank + 1)
            else:
                scores = torch.einsum("blw,vw->blv", outs[i], table)
                outs[i] = torch.nn.functional.cross_entropy(scores.transpose(1, 2), targets[i]).div(micro_batches)
                loss = loss + outs[i].item()

        def backward(i):
            y, g = outs.pop(i), None
            if rank < last:
                g = torch.empty_like(y)
                dist.recv(g, rank + 1)
            torch.autograd.backward(y, g)
            if rank:
                send(ins.pop(i).grad, rank - 1)

        ahead = min(last - rank, micro_batches)
        for i in range(ahead):
            forward(i)
        for i in range(ahead, micro_batches):
            forward(i)
            backward(i - ahead)
        for i in range(micro_batches - ahead, micro_batches):
            backward(i)
        for work in works:
            work.wait()
        if rank in (0, last):
            dist.all_reduce(table.grad, group=ends)
        return torch.tensor(loss) if rank == last else None

    return (tied_step,)


SUM = "        dist.all_reduce(table.grad, group=ends)"
LOSS = "cross_entropy((y @ table.t()).flatten(0, 1), labels.flatten()) / micro_batches"

right("gathered by the ends", {
    SUM: "        both = [torch.empty_like(table) for _ in range(ends.size())]\n"
    "        dist.all_gather(both, table.grad, group=ends)\n        table.grad = sum(both)",
})  # fmt: skip
right("the ends send each other their gradients", {
    SUM: "        if last:\n            other, theirs = last - rank, torch.empty_like(table)\n"
    "            work = dist.isend(table.grad, other)\n            dist.recv(theirs, other)\n            work.wait()\n"
    "            table.grad = table.grad + theirs",
})  # fmt: skip
right("half of the sum of doubles, begun early", {
    SUM: "        dist.all_reduce(table.grad, group=ends, async_op=True).wait()",
    "            dist.send(y.detach().contiguous(), rank + 1)": "            dist.isend(y.data.clone(), rank + 1).wait()",
})  # fmt: skip
right("the sum of all tokens' losses, divided once", {
    LOSS: "cross_entropy((y @ table.t()).flatten(0, 1), labels.flatten(), reduction='sum') / targets.numel()",
})  # fmt: skip

BACK = "        y.backward(gradient)"
wrong("a sum for each micro-batch, between its messages", "waits", {
    SUM: "        pass",
    BACK: BACK + "\n        if rank in (0, last):\n            dist.all_reduce(table.grad, group=ends)",
})  # fmt: skip
wrong("the whole world", "raised", {"    if rank in (0, last):\n" + SUM: "    dist.all_reduce(table.grad)"})
wrong("backward in between, from the last rank only", "waits", {
    "        waiting.append((x, y))": "        waiting.append((x, y))\n        if rank == last:\n            y.backward()\n"
    "            dist.recv(x.detach(), rank - 1)" })  # fmt: skip
wrong("everybody returns a loss", "and only the last rank should", {
    "    return total": "    return torch.tensor(1.0) if total is None else total"
})  # fmt: skip
wrong("no loss", "the loss is missing", {"    return total": "    return None"})
wrong("the middle's table has a gradient", "and only the first and the last rank should", {
    SUM: SUM + "\n    else:\n        table.grad = torch.zeros_like(table)"
})  # fmt: skip
wrong("whole batch at once", "raised", {"requires_grad_()\n        y": "view(-1)\n        y"})
wrong("the activation is not a leaf", "raised", {"            x.requires_grad_()\n": ""})
wrong("first the gradients, then the activations", "waits", {
    "        if rank < last:\n            dist.send": "        if 0 < rank < last:\n            dist.recv(torch.empty_like(y), rank + 1)\n"
    "        if rank < last:\n            dist.send",
})  # fmt: skip
wrong("a sum for each micro-batch", "once in a step", {
    SUM: "        for _ in range(micro_batches):\n            dist.all_reduce(table.grad, group=ends)"
})  # fmt: skip
