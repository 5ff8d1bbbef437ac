"""Exercise 4 of the lab on data parallelism: the loss where the logits are. What is not here is in the official one."""

from known_answers import right, wrong

BEGIN = "def data_parallel_loss"
PARTS = "parts, answers = scatter_batch(batch, devices), scatter_batch(targets, devices)"
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
wrong("detached", "knows nothing of the replicas", {SUM: SUM.replace("loss.to", "loss.detach().to")})
wrong("logits gathered", "compute it where the logits are", {
    FINISH: "return F.cross_entropy(torch.cat([output.to(devices[0]) for output in " + OUTPUTS + "]), targets)\n    " + FINISH
})  # fmt: skip
wrong("room for all logits", "holds too much at its peak", {
    "return " + SUM: "torch.zeros(2 * len(batch), list(model.parameters())[-1].numel(), device=devices[len(parts) - 1])\n"
    "    return " + SUM
})  # fmt: skip
