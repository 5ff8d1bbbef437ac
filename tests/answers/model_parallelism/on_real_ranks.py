"""Exercise 5 of the lab on model parallelism: a stage on each real rank, and messages between neighbours."""

import torch
import torch.distributed as dist
from known_answers import right, wrong

RECV = "                dist.recv(x, rank - 1)\n"
OUT = "                sending.append(dist.isend(y.detach(), rank + 1))\n"
SEND = "sending.append(dist.isend(x.grad, rank - 1))"
WAIT = "    for work in sending:\n        work.wait()\n"


@right("three loops, sending and receiving in one go, as Megatron does it")
def as_megatron():
    def exchange(*operations):
        for work in dist.batch_isend_irecv(list(operations)) if operations else ():
            work.wait()

    def pipeline_step(stage, shape, batch, targets, loss_fn, micro_batches):
        me, n, m = dist.get_rank(), dist.get_world_size(), micro_batches
        first, last, warm_up = me == 0, me == n - 1, min(n - 1 - me, m)
        parts, kind = torch.arange(shape[0]).tensor_split(m), next(one.dtype for one in stage.parameters())
        total, inputs, outputs, done = torch.zeros((), dtype=kind), [], [], [0]

        def room():
            return None if first else torch.zeros((len(parts[done[0]]), *shape[1:]), dtype=kind)

        def forward(x):
            nonlocal total
            mine = parts[done[0]]
            done[0] += 1
            inputs.append(batch[mine] if first else x.requires_grad_(True))
            y = stage(inputs[-1])
            if last:
                y = loss_fn(y, targets[mine]) * (len(mine) / shape[0])
                total = total + y.detach()
            outputs.append(y)
            return y.detach()

        def backward(gradient):
            x, y = inputs.pop(0), outputs.pop(0)
            torch.autograd.backward([y], [gradient])
            return x.grad

        def receive_input():
            x = room()
            exchange(*([] if first else [dist.P2POp(dist.irecv, x, me - 1)]))
            return x

        for _ in range(warm_up):
            exchange(dist.P2POp(dist.isend, forward(receive_input()), me + 1))
        x = receive_input() if warm_up < m else None
        for i in range(m - warm_up):
            y, gradient = forward(x), None
            x = None
            if not last:
                gradient = torch.zeros_like(outputs[0])
                exchange(dist.P2POp(dist.isend, y, me + 1), dist.P2POp(dist.irecv, gradient, me + 1))
            both = [dist.P2POp(dist.isend, backward(gradient), me - 1)] if not first else [backward(gradient)][:0]
            if i < m - warm_up - 1 and not first:
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


right("outputs are waited for, gradients run on", {
    "sending.append(dist.isend(y.detach(), rank + 1))": "dist.send(y.detach(), rank + 1)"
})  # fmt: skip
right("copies are sent, with tags; autograd.grad", {
    RECV: RECV.replace(")", ", tag=k)"), OUT: OUT.replace("y.detach(), rank + 1", "y.detach().clone(), dst=rank + 1, tag=k"),
    "dist.recv(gradient, rank + 1)": "dist.recv(gradient, src=rank + 1, tag=k)",
    "y.backward(gradient)": "wanted = list(stage.parameters())\n"
    "            found = torch.autograd.grad(y, [*wanted, *([x] if rank else [])], gradient)\n            for q, g in zip(wanted, found):\n"
    "                q.grad = g if q.grad is None else q.grad + g",
    SEND: SEND.replace("x.grad, rank - 1", "found[-1], dst=rank - 1, tag=k"),
})  # fmt: skip


wrong("send that waits", "does a rank wait for another that never comes", {
    OUT: OUT.replace("sending.append(dist.isend(", "dist.send(")[:-2] + "\n", SEND: "dist.send(x.grad, rank - 1)"
})  # fmt: skip
wrong("sends are not waited for", "never waits for send", {WAIT: ""})
wrong("the output is changed while it is sent", "changes a tensor while send", {
    "            kept[k] = x, y\n": "            if rank < last:\n                y.data.mul_(2)\n            kept[k] = x, y\n"
})  # fmt: skip
wrong("two dimensions", "a message does not fit", {"*shape[1:]": "shape[-1]"})
wrong("inputs are kept", "inputs of too many", {"kept.pop(k)": "kept[k]"})
