"""Exercise 4 of the lab on model parallelism: a step of a pipeline, with one forward and one backward in turns."""

import torch
from known_answers import right, wrong

from checks.engine import Reference

schedule_1f1b, send, receive = Reference("model_parallelism", "schedule_1f1b send receive").functions()
GET = 'y.backward(receive(inbox.pop((i, f"B{k}"))) if i < p - 1 else None'
BACK = '            inbox[i - 1, f"B{k}"] = send(x.grad, f"simgpu:{i - 1}")\n'
ARRIVED = "    torch.simgpu.current_stream(copy.device).wait_event(arrived)\n"
COMPUTED = "outgoing.wait_stream(torch.simgpu.current_stream(tensor.device))"
RACE = "nothing says which of two streams comes first"


@right("generators, one for each stage")
def generators():
    def one_f_one_b_step(stages, batch, targets, loss_fn, micro_batches):
        p, m = len(stages), micro_batches
        mail, losses = {}, []

        def run(i):
            kept = []
            for item in schedule_1f1b(i, p, m):
                k = int(item[1:])
                while (i, item) not in mail and i != (0 if item[0] == "F" else p - 1):
                    yield
                if item[0] == "F":
                    x = receive(mail.pop((i, item))) if i else batch.tensor_split(m)[k]
                    if i:
                        x.requires_grad = True
                    y = stages[i](x)
                    if i + 1 < p:
                        mail[i + 1, item] = send(y.detach(), f"simgpu:{i + 1}")
                    else:
                        part = targets.tensor_split(m)[k]
                        y = loss_fn(y, part).mul(part.shape[0]).div(targets.shape[0])
                        losses.append(y.detach())
                    kept.append((x, y))
                    del x, y
                else:
                    x, y = kept.pop(0)
                    y.backward(gradient=receive(mail.pop((i, item))) if i + 1 < p else None)
                    if i:
                        mail[i - 1, item] = send(x.grad, f"simgpu:{i - 1}")
                    del x, y
                yield

        running = [run(i) for i in range(p)]
        while running:
            running = [one for one in running if next(one, "over") != "over"]
        return torch.stack(losses).sum()

    return (one_f_one_b_step,)


right("the last stage is launched first, parts by split", {
    "        for i in range(p):\n            if todo": "        for i in reversed(range(p)):\n            if todo",
    "xs, ys = batch.tensor_split(m), targets.tensor_split(m)": "sizes = [len(batch) // m + (k < len(batch) % m) for k in range(m)]\n"
    "    xs, ys = batch.split(sizes), targets.split(sizes)",
    "return sum(losses)": "return torch.stack(losses).sum()",
})  # fmt: skip
right("gradients by autograd.grad", {
    GET + ")": "wanted = [q for q in stages[i].parameters() if q.requires_grad]\n"
    '        given = receive(inbox.pop((i, f"B{k}"))) if i < p - 1 else None\n'
    "        found = torch.autograd.grad(y, wanted + ([x] if i else []), given)\n        for q, gradient in zip(wanted, found):\n"
    "            q.grad = gradient if q.grad is None else q.grad.add_(gradient)",
    "send(x.grad,": "send(found[-1],",
})  # fmt: skip
wrong("plain copies", "a plain .to() keeps both GPUs waiting", {
    "    outgoing, incoming = ": "    return tensor.to(gpu), None\n    outgoing, incoming = ",
    "    copy, arrived = message\n": "    copy, arrived = message\n    if arrived is None:\n        return copy\n",
})  # fmt: skip
wrong(
    "keeps every graph", "activations of too many", {"kept.pop((i, k))": "kept[i, k]", GET: GET + ", retain_graph=True"}
)
wrong("gradient not sent", "stage 0 gets no gradients", {
    GET + ")": 'gradient = receive(inbox.pop((i, f"B{k}"))) if i < p - 1 else None\n        if i == p - 1:\n            y.backward()\n'
    "        else:\n            x.grad = x.detach()"
})  # fmt: skip
wrong("a float", "as a tensor with one number", {"sum(losses)": "float(sum(losses))"})
wrong("through the host", "a number goes to the host", {"send(x.grad,": "send(x.grad.cpu().to(x.device),"})
wrong("forward computed again", "runs forward more than once", {
    "        x, y = kept.pop((i, k))\n": "        x, y = kept.pop((i, k))\n        stages[i](x.detach())\n"
})  # fmt: skip
wrong("sends twice", "transfers from GPU to GPU", {BACK: BACK + "            send(x.grad, f'simgpu:{i - 1}')\n"})
wrong("does not wait for what arrives", RACE, {ARRIVED: ""})
wrong("sends what is not computed yet", RACE, {COMPUTED: "pass"})
wrong("takes gradients without receive", RACE, {'receive(inbox.pop((i, f"B{k}")))': 'inbox.pop((i, f"B{k}"))[0]'})
wrong("overwrites what it sends", RACE, {BACK: BACK + "            x.grad.zero_()\n"})
wrong("the host waits for what arrives", "the host waits until", {ARRIVED: "    arrived.synchronize()\n"})
