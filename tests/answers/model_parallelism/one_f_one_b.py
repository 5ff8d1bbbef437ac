"""Exercise 4 of the lab on model parallelism: a step of a pipeline, with one forward and one backward in turns."""

import torch
from known_answers import right, wrong


def schedule_1f1b(stage, p, m):
    warm_up = min(p - 1 - stage, m)
    order = [f"F{k}" for k in range(warm_up)]
    for k in range(m - warm_up):
        order += [f"F{warm_up + k}", f"B{k}"]
    return order + [f"B{k}" for k in range(m - warm_up, m)]


def send(tensor, gpu):
    outgoing, incoming = torch.simgpu.Stream(tensor.device), torch.simgpu.Stream(gpu)
    outgoing.wait_stream(torch.simgpu.current_stream(tensor.device))
    with torch.simgpu.stream(outgoing), torch.simgpu.stream(incoming):
        copy = tensor.to(gpu)
    return copy, incoming.record_event()


def receive(message):
    copy, arrived = message
    torch.simgpu.current_stream(copy.device).wait_event(arrived)
    return copy


def one_f_one_b_step(stages, batch, targets, loss_fn, micro_batches):
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


BEGIN = "    todo = [schedule_1f1b(i, p, m) for i in range(p)]\n"
WEIGHT = " * len(ys[k]) / len(targets)"
KEPT = "        kept[i, k] = x, y\n"
GIVE = "    return sum(losses)\n"
FORWARD = '            inbox[i + 1, f"F{k}"] = send(y.detach(), f"simgpu:{i + 1}")\n'
BACK = '            inbox[i - 1, f"B{k}"] = send(x.grad, f"simgpu:{i - 1}")\n'
GOES = "                    todo[i].pop(0)\n"
PLAIN = "    return tensor.to(gpu), None\n"
SENT = "    return copy, incoming.record_event()\n"
STREAMS = "    outgoing, incoming = torch.simgpu.Stream(tensor.device), torch.simgpu.Stream(gpu)\n"
EQUAL = {
    "5: arguments of `min(p - 1 - stage, m)` swapped": "the smaller one of two, in whichever order",
    "15: `torch.simgpu.stream(outgoing)` → `outgoing`": "a stream is a context manager too",
    "15: `torch.simgpu.stream(incoming)` → `incoming`": "a stream is a context manager too",
    "39: `y.detach()` → `y`": "its backward has let go of all that it held",
}


# --- right, and written differently


@right("messages drive the stages, another order of launching")
def messages():
    def one_f_one_b_step(stages, batch, targets, loss_fn, micro_batches):
        p, m, last = len(stages), micro_batches, len(stages) - 1
        plans = [iter(schedule_1f1b(i, p, m)) for i in range(p)]
        following = [next(plan) for plan in plans]
        arrived = {(0, f"F{k}"): x for k, x in enumerate(batch.tensor_split(m))}
        arrived |= {(last, f"B{k}"): None for k in range(m)}
        targets_of = targets.tensor_split(m)
        graphs = [{} for _ in range(p)]
        total = torch.zeros((), device=targets.device)

        while any(following):
            for i in reversed(range(p)):
                item = following[i]
                if item is None or (i, item) not in arrived:
                    continue
                message, k = arrived.pop((i, item)), int(item[1:])
                if isinstance(message, tuple):
                    message = receive(message)
                if item.startswith("F"):
                    x = message.detach().requires_grad_(i > 0)
                    y = stages[i](x)
                    if i == last:
                        y = loss_fn(y, targets_of[k]) * (len(targets_of[k]) / len(targets))
                        total += y.detach()
                    else:
                        arrived[i + 1, item] = send(y.detach(), f"simgpu:{i + 1}")
                    graphs[i][k] = x, y
                else:
                    x, y = graphs[i].pop(k)
                    torch.autograd.backward(y, message)
                    if i > 0:
                        arrived[i - 1, item] = send(x.grad, f"simgpu:{i - 1}")
                x = y = message = None
                following[i] = next(plans[i], None)
        return total

    return (one_f_one_b_step,)


@right("one loop over the ticks, and gradients by autograd.grad")
def ticks():
    def one_f_one_b_step(stages, batch, targets, loss_fn, micro_batches):
        p, m = len(stages), micro_batches
        sizes = [len(batch) // m + (k < len(batch) % m) for k in range(m)]
        xs, ys = list(batch.split(sizes)), list(targets.split(sizes))
        queues = [schedule_1f1b(i, p, m) for i in range(p)]
        mail, open_graphs = {}, {}
        total = targets.new_zeros((), dtype=batch.dtype)
        while sum(map(len, queues)):
            for i, queue in enumerate(queues):
                if not queue:
                    continue
                kind, k = queue[0][:1], int(queue[0][1:])
                first = i == 0 if kind == "F" else i == p - 1
                if not first and (i, kind, k) not in mail:
                    continue
                queue.pop(0)
                if kind == "F":
                    x = xs[k] if i == 0 else receive(mail.pop((i, kind, k))).requires_grad_()
                    y = stages[i](x)
                    if i == p - 1:
                        y = loss_fn(y, ys[k]) * (sizes[k] / sum(sizes))
                        total = total + y.detach()
                    else:
                        mail[i + 1, kind, k] = send(y.detach(), torch.device("simgpu", i + 1))
                    open_graphs[i, k] = (x, y)
                    del x, y
                else:
                    x, y = open_graphs.pop((i, k))
                    wanted = [q for q in dict.fromkeys(stages[i].parameters()) if q.requires_grad]
                    given = None if i == p - 1 else receive(mail.pop((i, kind, k)))
                    found = torch.autograd.grad(y, wanted + ([x] if i else []), given)
                    if i:
                        mail[i - 1, kind, k] = send(found[-1], torch.device("simgpu", i - 1))
                    for q, gradient in zip(wanted, found, strict=False):
                        q.grad = gradient if q.grad is None else q.grad.add_(gradient)
                    del x, y, given, found, gradient
        return total

    return (one_f_one_b_step,)


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


# --- wrong: numbers

wrong("loss without weight", "each micro-batch counts fully", {WEIGHT: ""})
wrong("mean of the means", "the mean of their means is not the mean over the batch", {WEIGHT: " / m"})
wrong("gradient not sent", "have no gradients", {
    "y.backward(receive(inbox.pop((i, f\"B{k}\"))) if i < p - 1 else None)": "message = inbox.pop((i, f'B{k}')) if i < p - 1 else None\n"
    "        if i == p - 1:\n            y.backward()"
    "\n        else:\n            x.grad = x.detach()"
})  # fmt: skip
wrong(
    "gradient of ones",
    "are not those of one device",
    {
        'y.backward(receive(inbox.pop((i, f"B{k}"))) if': 'y.backward(torch.ones_like(receive(inbox.pop((i, f"B{k}")))) if'
    },
)
wrong("the last loss", "the loss that you return", {"sum(losses)": "losses[-1]"})
wrong("a float", "a number goes to the host", {"sum(losses)": "float(sum(losses))"})
wrong(
    "gradients rounded on the way", "are not those of one device", {"send(x.grad,": "send(x.grad.bfloat16().float(),"}
)


# --- wrong: how it is computed

wrong("GPipe's order", "all forwards first is GPipe", {"warm_up = min(p - 1 - stage, m)": "warm_up = m"})
wrong("one after the other", "keeps the other GPUs waiting", {"warm_up = min(p - 1 - stage, m)": "warm_up = 0"})
wrong(
    "one forward too many",
    "does not follow its schedule",
    {"warm_up = min(p - 1 - stage, m)": "warm_up = min(p - stage, m)"},
)
wrong(
    "plain copies",
    "a plain .to() keeps both GPUs waiting",
    {
        STREAMS: PLAIN + STREAMS,
        "    copy, arrived = message\n": "    copy, arrived = message\n    if arrived is None:\n        return copy\n",
    },
)
wrong(
    "keeps every graph",
    "GPU 0 holds the activations of too many",
    {
        "x, y = kept.pop((i, k))": "x, y = kept[i, k]",
        'y.backward(receive(inbox.pop((i, f"B{k}"))) if i < p - 1 else None)': 'y.backward(receive(inbox.pop((i, f"B{k}"))) if i < p - 1 else None, retain_graph=True)',
    },
)
wrong(
    "item each time",
    "a number goes to the host",
    {"losses.append(y.detach())": "losses.append(y.detach())\n            y.item()"},
)
wrong(
    "synchronizes each round",
    "synchronize makes the host wait",
    {GOES: GOES + "                    torch.simgpu.synchronize()\n"},
)
wrong(
    "forward computed again",
    "is something computed twice?",
    {"        x, y = kept.pop((i, k))\n": "        x, y = kept.pop((i, k))\n        stages[i](x.detach())\n"},
)
wrong(
    "over the first GPU",
    "which are no neighbours",
    {FORWARD: FORWARD.replace("send(y.detach(),", "send(y.detach() if i < 2 else y.detach().to('simgpu:0'),")},
)
wrong("through the host", "a number goes to the host", {"send(x.grad,": "send(x.grad.cpu().to(x.device),"})
wrong(
    "sends what nobody needs",
    "one activation forward and one gradient back",
    {BACK: BACK + "            send(x.grad, f'simgpu:{i - 1}')\n"},
)
wrong(
    "whole micro-batches at once",
    "micro-batches instead of",
    {"p, m = len(stages), micro_batches": "p, m = len(stages), max(1, micro_batches - 1)"},
)


# --- wrong: what else is changed

wrong("eval", "is in another mode", {BEGIN: BEGIN + "    [stage.eval() for stage in stages]\n"})
wrong("the batch learns", "`batch` has another `requires_grad`", {BEGIN: BEGIN + "    batch.requires_grad_()\n"})
wrong(
    "normalises the targets in place",
    "`targets` has other numbers",
    {GIVE: "    total = sum(losses)\n    targets.zero_()\n    return total\n"},
)
wrong("keeps the losses", "stays in a GPU's memory", {
    "def one_f_one_b_step": "known = []\n\n\ndef one_f_one_b_step", GIVE: "    known.extend(losses)\n" + GIVE
})  # fmt: skip
wrong("keeps a stage", "has attributes that were added", {BEGIN: BEGIN + "    stages[0].next = 1\n"})
wrong("leaves a stream current", "leaves the current streams other", {
    GIVE: "    torch.simgpu.set_stream(torch.simgpu.Stream('simgpu:0'))\n" + GIVE
})  # fmt: skip


# --- wrong: right numbers here, by luck on a real GPU

ARRIVED = "    torch.simgpu.current_stream(copy.device).wait_event(arrived)\n"
COMPUTED = "    outgoing.wait_stream(torch.simgpu.current_stream(tensor.device))\n"
RACE = "nothing says which of two streams comes first"
wrong("does not wait for what arrives", RACE, {ARRIVED: ""})
wrong("sends what is not computed yet", RACE, {COMPUTED: ""})
wrong("takes activations without receive", RACE, {
    'receive(inbox.pop((i, f"F{k}"))).requires_grad_()': 'inbox.pop((i, f"F{k}"))[0].requires_grad_()'
})  # fmt: skip
wrong("takes gradients without receive", RACE, {'receive(inbox.pop((i, f"B{k}")))': 'inbox.pop((i, f"B{k}"))[0]'})
wrong("waits on the wrong GPU", RACE, {"current_stream(copy.device).wait_event": "current_stream(0).wait_event"})
wrong("the event before the copy", RACE, {
    STREAMS: STREAMS + "    early = incoming.record_event()\n",
    SENT: "    return copy, early\n",
})  # fmt: skip
wrong("adds up the losses beside", RACE, {
    GIVE: "    with torch.simgpu.stream(torch.simgpu.Stream(losses[0].device)):\n        return sum(losses)\n"
})  # fmt: skip
wrong("overwrites what it sends", RACE, {BACK: BACK + "            x.grad.zero_()\n"})


# --- wrong: what was there before, and the next call

wrong(
    "clears the gradients first",
    "the gradients that were there before the step are lost",
    {BEGIN: BEGIN + "    [stage.zero_grad() for stage in stages]\n"},
)
wrong("leaves out the stages' hooks", "are not those of one device", {"stages[i](x)": "stages[i].forward(x)"})
wrong(
    "the number of samples of the first call",
    "are not those of one device",
    {"/ len(targets)": "/ one_f_one_b_step.__dict__.setdefault((m, p), len(targets))"},
)
wrong(
    "the host waits for what arrives",
    "the host waits for a stream or an event",
    {ARRIVED: "    arrived.synchronize()\n"},
)
