"""Exercise 4 of the lab on data parallelism: the loss where the logits are. What is not here is in the official one."""

from known_answers import right, wrong

BEGIN = "def data_parallel_loss"
PARTS = "parts, answers = scatter_batch(batch, devices), scatter_batch(targets, devices)"
REPLICAS = "replicas = replicate_model(model, devices[: len(parts)])"
EACH = 'F.cross_entropy(functional_call(model, replica, part), answer, reduction="sum")'
SUM = "sum(loss.to(devices[0]) for loss in losses) / len(batch)"
OUTPUTS = "[functional_call(model, *both) for both in zip(replicas, parts, strict=True)]"
FINISH = "losses = [\n        " + EACH
MODULE = """class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, rows, answers):
        return F.cross_entropy(self.model(rows), answers)


def data_parallel_loss"""
right("log-softmax, then gather; stacked", {
    EACH: "-functional_call(model, replica, part).log_softmax(dim=-1).gather(1, answer[:, None]).sum() / len(batch)",
    SUM: "torch.stack([loss.to(devices[0]) for loss in losses]).sum()",
})  # fmt: skip
right("log-sum-exp minus the target's logit, by an index; last share first", {
    FINISH: "total = torch.zeros((), dtype=batch.dtype, device=devices[0])\n"
    "    for replica, part, answer in reversed(list(zip(replicas, parts, answers, strict=True))):\n"
    "        logits = functional_call(model, replica, part)\n"
    "        rows = torch.arange(len(answer), device=answer.device)\n"
    "        loss = (torch.logsumexp(logits, 1) - logits[rows, answer]).mean()\n"
    "        total = total + (len(answer) / len(batch)) * loss.to(device=devices[0])\n    return total\n    " + FINISH
})  # fmt: skip
right("a module that has its loss, and torch's own four steps", {
    BEGIN: MODULE, PARTS: "from torch.nn.parallel import gather, parallel_apply, replicate, scatter\n\n"
    "    inputs = scatter((batch, targets), devices)\n"
    "    replicas = replicate(WithLoss(model), devices[: len(inputs)])\n"
    "    losses = gather([loss[None] for loss in parallel_apply(replicas, inputs)], devices[0])\n"
    "    return losses @ torch.tensor([len(rows) / len(batch) for rows, _ in inputs], device=devices[0])"
})  # fmt: skip
right("a sum and a count go to the first GPU; as even as possible", {
    PARTS: "split = lambda tensor: zip(tensor.tensor_split(min(len(devices), len(batch))), devices, strict=False)\n"
    "    parts, answers = ([part.to(device) for part, device in split(one)] for one in (batch, targets))",
    EACH: "F.nll_loss(F.log_softmax(functional_call(model, replica, part), dim=1), answer, reduction='sum')",
    "return " + SUM: "counts = [torch.full_like(loss, len(part)) for loss, part in zip(losses, parts)]\n"
    "    both = [torch.stack(pair).to(devices[0]) for pair in zip(losses, counts)]\n"
    "    total = torch.stack(both).sum(dim=0)\n    return total[0] / total[1]",
})  # fmt: skip
wrong("targets stay on the first GPU", "Expected all tensors to be on the same device", {
    PARTS: PARTS.replace("scatter_batch(targets, devices)", "targets.chunk(len(devices))")
})  # fmt: skip
wrong("one loss for each GPU", "the loss is one number", {SUM: "torch.stack([one.to(devices[0]) for one in losses])"})
wrong("floats", "not one tensor", {SUM: "sum(loss.item() for loss in losses) / len(batch)"})
wrong("on the last GPU", "not on devices[0]", {SUM: SUM.replace("devices[0]", "devices[len(losses) - 1]")})
wrong("rounded on the way", "the result, in step 1", {
    SUM: SUM.replace("loss.to(devices[0])", "loss.bfloat16().to(devices[0]).to(loss.dtype)")
})  # fmt: skip
wrong("detached", "knows nothing of the replicas", {SUM: SUM.replace("loss.to", "loss.detach().to")})
wrong("backward inside", "leave backward to the caller", {
    "return " + SUM: "total = " + SUM + "\n    total.backward(retain_graph=True)\n    return total"
})  # fmt: skip
wrong("logits gathered", "compute it where the logits are", {
    FINISH: "return F.cross_entropy(torch.cat([output.to(devices[0]) for output in " + OUTPUTS + "]), targets)\n    " + FINISH
})  # fmt: skip
wrong("losses of rows gathered", "more than a loss of each GPU", {
    '"sum"': '"none"', SUM: "torch.cat([loss.to(devices[0]) for loss in losses]).mean()"
})  # fmt: skip
wrong("logits gathered elsewhere", "beside the model and their own rows", {
    FINISH: "there = devices[len(parts) - 1]\n    outputs = torch.cat([output.to(there) for output in " + OUTPUTS + "])\n"
    "    return F.cross_entropy(outputs, targets.to(there)).to(devices[0])\n    " + FINISH
})  # fmt: skip
wrong("through the host", "through the host", {SUM: "sum(loss.cpu() for loss in losses).to(devices[0]) / len(batch)"})
wrong("room for all logits", "holds too much at its peak", {
    "return " + SUM: "torch.zeros(2 * len(batch), list(model.parameters())[-1].numel(), device=devices[len(parts) - 1])\n"
    "    return " + SUM
})  # fmt: skip
wrong("DataParallel", "nn.DataParallel does not count", {
    PARTS: "return F.cross_entropy(torch.nn.DataParallel(model, devices)(batch), targets)"
})  # fmt: skip
wrong("eval", "train() or eval()", {PARTS: "model.eval()\n    " + PARTS})
wrong("replicas for ever", "stays in a GPU's memory", {
    BEGIN: "known = {}\n\n\n" + BEGIN,
    REPLICAS: "replicas = known.setdefault(tuple(devices), replicate_model(model, devices[: len(parts)]))",
})  # fmt: skip
wrong(
    "very wrong rows count less", "the result, in step 1", {'reduction="sum")': 'reduction="none").clamp(max=9).sum()'}
)
