"""Exercise 5 of the lab on DistributedDataParallel. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong

ASK = "    dist.all_reduce(used)\n"
SKIP = "        if by_how_many == 0:\n            continue\n"
ZEROS = "        if parameter.grad is None:\n            parameter.grad = torch.zeros_like(parameter)\n"
ALONE = "Some ranks have no gradient for what others have used"


@right("zeros for everything, flags of a byte at the same time")
def everything_travels():
    def average_used(model):
        parameters = [p for p in model.parameters() if p.requires_grad]
        idle = [p for p in parameters if p.grad is None]
        for parameter in idle:
            parameter.grad = torch.zeros_like(parameter)
        nobody = torch.tensor([parameter in set(idle) for parameter in parameters], dtype=torch.uint8)
        works = [dist.all_reduce(nobody, op=dist.ReduceOp.MIN, async_op=True)]
        works += [dist.all_reduce(parameter.grad, async_op=True) for parameter in parameters]
        for work in works:
            work.wait()
        for parameter, unused in zip(parameters, nobody, strict=True):
            parameter.grad = None if unused else parameter.grad / dist.get_world_size()

    return (average_used,)


@right("the largest flag, by name, the mean by the collective")
def largest_flag():
    def average_used(model):
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        flags = torch.zeros(len(named), dtype=torch.int64)
        for place, parameter in enumerate(named.values()):
            flags[place] = 0 if parameter.grad is None else 1
        dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        wanted = [name for name, flag in zip(named, flags, strict=True) if flag]
        for name in sorted(wanted):
            mean = torch.zeros_like(named[name]) if named[name].grad is None else named[name].grad.clone()
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
            named[name].grad = mean.detach()

    return (average_used,)


@right("used ones in one vector, after the flags")
def used_in_one_vector():
    @torch.no_grad()
    def average_used(model):
        trained = list(filter(lambda p: p.requires_grad, model.parameters()))
        users = torch.as_tensor([p.grad is not None for p in trained]).double()
        dist.all_reduce(users, async_op=True).wait()
        trained = [p for p, count in zip(trained, users, strict=True) if count]
        if not trained:
            return
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad = parameter.new_zeros(parameter.shape)
        vector = torch.cat([p.grad.ravel() for p in trained]) / dist.get_world_size()
        dist.all_reduce(vector)
        for parameter, part in zip(trained, vector.split([p.numel() for p in trained]), strict=True):
            parameter.grad.copy_(part.view_as(parameter))

    return (average_used,)


wrong("no thought of it", "raised TypeError", {ASK: "", SKIP: "", ZEROS: ""})
wrong("skips what is None", ALONE, {ASK: "", ZEROS: ""})
wrong("flags only where something is missing", "the ranks do not call the same collectives", {
    ASK: "    if not used.all():\n        dist.all_reduce(used)\n    else:\n        used *= dist.get_world_size()\n"
})  # fmt: skip
wrong("flags that overflow", "with 256 ranks the sum is 0 again", {"torch.int32": "torch.uint8"})
wrong("one flag at a time", "and one for all flags together", {
    ASK: "    for flag in used.split(1):\n        dist.all_reduce(flag)\n"
})  # fmt: skip
