"""Exercise 1 of the lab on DistributedDataParallel. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong

ALL = "[*model.parameters(), *model.buffers()]"
SEND = "        dist.broadcast(tensor.detach(), 0)\n"
EACH = "\n    for parameter in model.parameters():\n        if parameter.requires_grad:\n"
SUM = "            dist.all_reduce(parameter.grad)\n"
MEAN = "            parameter.grad /= dist.get_world_size()\n"
COPIES = "            mean = parameter.grad.clone()\n            dist.all_reduce(tensor=mean, op=dist.ReduceOp.AVG)\n"

right(
    "new gradients, the mean by the collective",
    {EACH + SUM + MEAN: EACH + COPIES + "            parameter.grad = mean\n"},
)
right("torch's operators by their own names", {
    EACH + SUM + MEAN: EACH + SUM + "            torch.ops.aten.div_.Scalar(parameter.grad.detach(), dist.get_world_size())\n"
})  # fmt: skip
right("copies are broadcast by name, and divided before they travel", {
    f"    for tensor in {ALL}:\n{SEND}": "    everything = dict(model.named_parameters()) | dict(model.named_buffers())\n"
    "    for name in sorted(everything):\n        copy = everything[name].detach().clone()\n"
    "        dist.broadcast(copy, src=0, group=dist.group.WORLD)\n        everything[name].data.copy_(copy)\n",
    EACH + SUM + MEAN: EACH + "            total = parameter.grad / dist.get_world_size()\n"
    "            assert dist.all_reduce(total, dist.ReduceOp.SUM, None, True).wait()\n"
    "            parameter.grad.copy_(total)\n",
})  # fmt: skip


@right("all at once, from the last one to the first, and then all waits")
def asynchronous():
    @torch.no_grad()
    def broadcast_state(model):
        works = [dist.broadcast(one, src=0, async_op=True) for one in (*model.parameters(), *model.buffers())]
        for work in works:
            work.wait()

    def average_gradients(model):
        gradients = [parameter.grad for parameter in reversed(list(model.parameters())) if parameter.requires_grad]
        torch._foreach_div_(gradients, dist.get_world_size())
        for work in [dist.all_reduce(gradient, async_op=True) for gradient in gradients]:
            work.wait()

    return broadcast_state, average_gradients


@right("everything of one type in one vector")
def flattened():
    def flat(tensors):
        for dtype in sorted({tensor.dtype for tensor in tensors}, key=str):
            alike = [tensor for tensor in tensors if tensor.dtype == dtype]
            yield alike, torch.cat([tensor.detach().flatten() for tensor in alike])

    def put_back(vector, tensors):
        with torch.no_grad():
            for tensor, part in zip(tensors, vector.split([tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def broadcast_state(model):
        for tensors, vector in flat([*model.parameters(), *model.buffers()]):
            dist.broadcast(vector, 0)
            put_back(vector, tensors)

    def average_gradients(model):
        for tensors, vector in flat([p.grad for p in model.parameters() if p.grad is not None]):
            vector /= dist.get_world_size()
            dist.all_reduce(vector)
            put_back(vector, tensors)

    return broadcast_state, average_gradients


vectors = {}


@right("a vector that is kept from step to step")
def kept_vector():
    def average_gradients(model):
        trained = [p for p in model.parameters() if p.requires_grad]
        key = id(model), sum(p.numel() for p in trained)
        if key not in vectors:
            vectors[key] = torch.empty(key[1], dtype=trained[0].dtype)
        parts = vectors[key].split([p.numel() for p in trained])
        for parameter, part in zip(trained, parts, strict=True):
            part.copy_(parameter.grad.flatten())
        dist.all_reduce(vectors[key])
        for parameter, part in zip(trained, parts, strict=True):
            parameter.grad.copy_(part.view_as(parameter) / dist.get_world_size())

    return (average_gradients,)


wrong("broadcast not waited for", "never waits for broadcast", {SEND: SEND.replace("0)", "0, async_op=True)")})
wrong("everybody is the source", "a broadcast from rank 1", {"detach(), 0": "detach(), dist.get_rank()"})
wrong(
    "rank 0 only",
    "and nothing more: its step is over on ranks 1, 2",
    {EACH: EACH[:-2] + " and dist.get_rank() == 0:\n"},
)
wrong("all_gather", "calls all_gather, and all_reduce is all", {
    EACH + SUM + MEAN: EACH + "            everyone = [torch.empty_like(parameter) for _ in range(dist.get_world_size())]\n"
    "            dist.all_gather(everyone, parameter.grad)\n            parameter.grad = torch.stack(everyone).mean(0)\n"
})  # fmt: skip
wrong(
    "the mean of the models",
    "calls all_reduce, and broadcast is all",
    {SEND: "        dist.all_reduce(tensor.detach())\n"},
)
wrong("pickled state", "the bytes that broadcast_state sends", {
    f"    for tensor in {ALL}:\n{SEND}": f"    state = [{ALL}]\n    dist.broadcast_object_list(state, 0)\n"
    f"    for mine, theirs in zip({ALL}, state[0], strict=True):\n        mine.data.copy_(theirs)\n"
})  # fmt: skip
wrong("divides what travels", "changed between the start of their all_reduce and its wait()", {
    EACH + SUM + MEAN: EACH + "            work = dist.all_reduce(parameter.grad, async_op=True)\n" + MEAN + "            work.wait()\n"
})  # fmt: skip
wrong("parameters are averaged", "the mean does not arrive in `.grad`", {
    EACH + SUM + MEAN: EACH + SUM.replace(".grad", ".data") + MEAN.replace(".grad", ".data")
})  # fmt: skip
wrong("untied", "a tensor, or a tie", {
    SEND: SEND + "    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)\n"
})  # fmt: skip
wrong("eval", "the mode (train or eval)", {SEND: SEND + "    model.eval()\n"})
