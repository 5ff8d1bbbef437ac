"""Exercise 4 of the lab on data parallelism: the loss, where the logits are."""

import torch
from known_answers import right, wrong
from torch.func import functional_call
from torch.nn import functional as F


def scatter_batch(batch, devices):
    parts = batch.chunk(len(devices))
    return [part.to(devices[index]) for index, part in enumerate(parts)]


def replicate_model(model, devices):
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return [{name: tensor.to(device) for name, tensor in tensors.items()} for device in devices]


def data_parallel_loss(model, batch, targets, devices):
    parts, answers = scatter_batch(batch, devices), scatter_batch(targets, devices)
    replicas = replicate_model(model, devices[: len(parts)])
    losses = [
        F.cross_entropy(functional_call(model, replica, part), answer, reduction="sum")
        for replica, part, answer in zip(replicas, parts, answers, strict=True)
    ]
    return sum(loss.to(devices[0]) for loss in losses) / len(batch)


BEGIN = "def data_parallel_loss"
PARTS = "    parts, answers = scatter_batch(batch, devices), scatter_batch(targets, devices)\n"
REPLICAS = "    replicas = replicate_model(model, devices[: len(parts)])\n"
EACH = """        F.cross_entropy(functional_call(model, replica, part), answer, reduction="sum")
"""
SUM = "sum(loss.to(devices[0]) for loss in losses) / len(batch)"
MEAN = """        F.cross_entropy(functional_call(model, replica, part), answer)
"""
OUTPUTS = "[functional_call(model, *both) for both in zip(replicas, parts, strict=True)]"
EQUAL = {
    "25: `zip(replicas, parts, answers, strict=True)` without strict": "there are as many of each",
    "25: True → False": "there are as many of each",
}


# --- right, and written differently


@right("log-softmax, then gather")
def log_softmax_gather():
    def data_parallel_loss(model, batch, targets, devices):
        parts, answers = scatter_batch(batch, devices), scatter_batch(targets, devices)
        replicas = replicate_model(model, devices[: len(parts)])
        losses = []
        for replica, part, answer in zip(replicas, parts, answers, strict=True):
            scores = functional_call(model, replica, part).log_softmax(dim=-1)
            losses.append(-scores.gather(1, answer[:, None]).sum() / len(batch))
        return torch.stack([loss.to(devices[0]) for loss in losses]).sum()

    return (data_parallel_loss,)


@right("log-sum-exp minus the target's logit, by an index")
def log_sum_exp():
    def data_parallel_loss(model, batch, targets, devices):
        parts, answers = scatter_batch(batch, devices), scatter_batch(targets, devices)
        replicas = replicate_model(model, devices[: len(parts)])
        total = torch.zeros((), dtype=batch.dtype, device=devices[0])
        for replica, part, answer in reversed(list(zip(replicas, parts, answers, strict=True))):
            logits = functional_call(model, replica, part)
            rows = torch.arange(len(answer), device=answer.device)
            loss = (torch.logsumexp(logits, 1) - logits[rows, answer]).mean()
            total = total + (len(answer) / len(batch)) * loss.to(device=devices[0])
        return total

    return (data_parallel_loss,)


@right("a module that has its loss, and torch's own four steps")
def module_with_loss():
    from torch import nn
    from torch.nn.parallel import gather, parallel_apply, replicate, scatter

    class WithLoss(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, rows, answers):
            return F.cross_entropy(self.model(rows), answers)

    def data_parallel_loss(model, batch, targets, devices):
        inputs = scatter((batch, targets), devices)
        replicas = replicate(WithLoss(model), devices[: len(inputs)])
        losses = gather([loss[None] for loss in parallel_apply(replicas, inputs)], devices[0])
        weights = torch.tensor([len(rows) / len(batch) for rows, _ in inputs], device=devices[0])
        return losses @ weights

    return (data_parallel_loss,)


@right("a sum and a count go to the first GPU")
def sum_and_count():
    def data_parallel_loss(model, batch, targets, devices):
        p = min(len(devices), len(batch))
        parts = [part.to(device) for part, device in zip(batch.tensor_split(p), devices, strict=False)]
        answers = [part.to(device) for part, device in zip(targets.tensor_split(p), devices, strict=False)]
        replicas = replicate_model(model, devices[:p])
        both = []
        for replica, part, answer in zip(replicas, parts, answers, strict=True):
            loss = nll(functional_call(model, replica, part), answer)
            both.append(torch.stack([loss, torch.full_like(loss, len(answer))]).to(devices[0]))
        total = torch.stack(both).sum(dim=0)
        return total[0] / total[1]

    def nll(logits, answer):
        return F.nll_loss(F.log_softmax(logits, dim=1), answer, reduction="sum")

    return (data_parallel_loss,)


# --- wrong: which number

wrong("mean of means", "weight each loss with its number of rows", {EACH: MEAN, "len(batch)": "len(losses)"})
wrong("sum of means", "is the sum of the GPUs' means", {EACH: MEAN, " / len(batch)": ""})
wrong("sum over the rows", "divide by their number", {" / len(batch)": ""})
wrong("divided twice", "divided by the number of GPUs once more", {"len(batch)": "len(batch) / len(losses)"})
wrong("loss of the first GPU", "the loss of the first GPU's rows alone", {SUM: "losses[0] / len(parts[0])"})
wrong("targets are not split", "each with its own target", {
    PARTS: "    parts = scatter_batch(batch, devices)\n    answers = [targets[: len(part)].to(part.device) for part in parts]\n"
})  # fmt: skip
wrong("targets stay on the first GPU", "Expected all tensors to be on the same device", {
    PARTS: "    parts, answers = scatter_batch(batch, devices), targets.chunk(len(devices))\n"
})  # fmt: skip
wrong(
    "one loss for each GPU",
    "return one number",
    {SUM: "torch.stack([loss.to(devices[0]) for loss in losses]) / len(batch)"},
)
wrong("one number in a list", "return one number", {SUM: "(" + SUM + ")[None]"})
wrong("floats", "a number without a graph", {SUM: "sum(loss.item() for loss in losses) / len(batch)"})
wrong("on the last GPU", "the loss is in the wrong place", {SUM: SUM.replace("devices[0]", "devices[len(losses) - 1]")})
wrong(
    "rounded on the way",
    "is off by",
    {SUM: SUM.replace("loss.to(devices[0])", "loss.bfloat16().to(devices[0]).to(loss.dtype)")},
)


# --- wrong: gradients

wrong("detached", "the loss knows nothing of the replicas", {SUM: SUM.replace("loss.to", "loss.detach().to")})
wrong("deepcopied but for the first GPU", "the other replicas are cut off", {
    REPLICAS: "    import copy\n\n    twins = [model, *(copy.deepcopy(model).to(device) for device in devices[1 : len(parts)])]\n"
    "    replicas = [dict(twin.named_parameters()) | dict(twin.named_buffers()) for twin in twins]\n"
})  # fmt: skip
wrong("backward inside", "Leave that to the caller", {
    "    return " + SUM: "    total = " + SUM + "\n    total.backward(retain_graph=True)\n    return total"
})  # fmt: skip
wrong("a gradient of one's own", "does not have the right numbers", {
    "    return " + SUM: "    total = " + SUM + "\n    total.register_hook(torch.ones_like)\n    return total"
})  # fmt: skip
wrong("the batch is cut off", "the batch requires a gradient", {PARTS: PARTS.replace("(batch,", "(batch.detach(),")})


# --- wrong: bytes, memory, work

wrong("all on the first GPU", "not every GPU works", {PARTS: "    return F.cross_entropy(model(batch), targets)\n"})
wrong("logits gathered", "compute the loss where the logits are", {
    "    losses = [\n" + EACH: "    return F.cross_entropy(torch.cat([output.to(devices[0]) for output in " + OUTPUTS + "]), targets)\n    losses = [\n" + EACH
})  # fmt: skip
wrong("log-probabilities gathered", "compute the loss where the logits are", {
    "    losses = [\n" + EACH: "    scores = [F.log_softmax(output, 1).to(devices[0]) for output in " + OUTPUTS + "]\n"
    "    return F.nll_loss(torch.cat(scores), targets)\n    losses = [\n" + EACH
})  # fmt: skip
wrong("losses of rows gathered", "one for each GPU is enough", {
    '"sum"': '"none"', SUM: "torch.cat([loss.to(devices[0]) for loss in losses]).mean()"
})  # fmt: skip
wrong("logits gathered elsewhere", "other bytes move", {
    "    losses = [\n" + EACH: "    there = devices[len(parts) - 1]\n    outputs = torch.cat([output.to(there) for output in " + OUTPUTS + "])\n"
    "    return F.cross_entropy(outputs, targets.to(there)).to(devices[0])\n    losses = [\n" + EACH
})  # fmt: skip
wrong(
    "through the host", "goes through the host", {SUM: "sum(loss.cpu() for loss in losses).to(devices[0]) / len(batch)"}
)
wrong("all targets everywhere", "scatter them", {
    PARTS: "    parts = scatter_batch(batch, devices)\n    ends = [0]\n    for part in parts:\n        ends.append(ends[-1] + len(part))\n"
    "    answers = [targets.to(part.device)[a:b] for part, a, b in zip(parts, ends, ends[1:])]\n"
})  # fmt: skip
wrong("one-hot targets on the first GPU", "holds too much at its peak", {
    PARTS: "    classes = list(model.parameters())[-1].numel()\n"
    "    wanted = torch.zeros(len(batch), classes, dtype=batch.dtype, device=devices[0]).scatter_(1, targets[:, None], 1.0)\n"
    + PARTS.replace("targets", "wanted")
})  # fmt: skip
wrong("room for all logits", "holds too much at its peak", {
    "    return " + SUM: "    classes = list(model.parameters())[-1].numel()\n"
    "    spare = torch.zeros(2 * len(batch), classes, device=devices[len(parts) - 1])\n    del spare\n    return " + SUM
})  # fmt: skip
wrong("DataParallel", "nn.DataParallel does not count", {
    PARTS: "    return F.cross_entropy(torch.nn.DataParallel(model, devices)(batch), targets)\n"
})  # fmt: skip


# --- wrong: what else is changed

wrong(
    "moves the model",
    "lies in other memory than before",
    {PARTS: PARTS + "    model.to(devices[-1])\n    model.to('simgpu:0')\n"},
)
wrong("eval", "is in another mode", {PARTS: "    model.eval()\n" + PARTS})
wrong("changes the targets", "modified by an inplace operation", {
    "    return " + SUM: "    total = " + SUM + "\n    targets.zero_()\n    return total"
})  # fmt: skip
wrong("replicas for ever", "of the parameters before the last step", {
    BEGIN: "known = {}\n\n\n" + BEGIN,
    REPLICAS: "    for device in devices:\n        if (id(model), device) not in known:\n"
    "            known[id(model), device] = {n: t.to(device, copy=True) for n, t in replicate_model(model, devices[:1])[0].items()}\n"
    "    replicas = [known[id(model), part.device] for part in parts]\n",
})  # fmt: skip
wrong("keeps the last loss", "stays in a GPU's memory", {
    BEGIN: "known = []\n\n\n" + BEGIN, "    return " + SUM: "    known.append(losses[-1].detach() + 0)\n    return " + SUM
})  # fmt: skip
wrong(
    "leaves a hook",
    "a hook more than before",
    {PARTS: PARTS + "    next(model.parameters()).register_hook(lambda g: g)\n"},
)
wrong("the last loss is kept", "something stays in a GPU's memory after the step", {
    "    return sum(": "    data_parallel_loss.last = losses[0].detach()\n    return sum("
})  # fmt: skip
wrong("the logarithm of the softmax", "numbers that are not finite", {
    'F.cross_entropy(functional_call(model, replica, part), answer, reduction="sum")':
    "-functional_call(model, replica, part).softmax(1).log().gather(1, answer[:, None]).sum()"
})  # fmt: skip
wrong("a row that is very wrong counts less", "does not have the right numbers", {
    'answer, reduction="sum")': 'answer, reduction="none").clamp(max=10).sum()'
})  # fmt: skip
