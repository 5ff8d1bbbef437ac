"""Exercise 5 of the lab on DistributedDataParallel: parameters that not every rank uses."""

import torch
import torch.distributed as dist
from known_answers import right, wrong


def average_used(model):
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    used = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
    dist.all_reduce(used)
    for parameter, by_how_many in zip(parameters, used.tolist(), strict=True):
        if by_how_many == 0:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


EQUAL = {
    "11: `used.tolist()` → `used`": "a tensor with one number compares like the number",
    "11: `zip(parameters, used.tolist(), strict=True)` without strict": "both are equally long",
    "11: True → False": "both are equally long",
}
NAME = "def average_used(model):\n"
ASK = "    dist.all_reduce(used)\n"
SKIP = "        if by_how_many == 0:\n            continue\n"
ZEROS = "        if parameter.grad is None:\n            parameter.grad = torch.zeros_like(parameter)\n"
SUM = "        dist.all_reduce(parameter.grad)\n"
MEAN = "        parameter.grad /= dist.get_world_size()\n"


# --- right, and written differently


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


@right("gradients, zeros and flags in one vector")
def one_vector():
    def average_used(model):
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        parts = [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in parameters]
        flags = torch.tensor([float(parameter.grad is not None) for parameter in parameters], dtype=parts[0].dtype)
        vector = torch.cat([*parts, flags])
        dist.all_reduce(vector)
        *parts, flags = vector.split([len(part) for part in (*parts, flags)])
        for parameter, part, users in zip(parameters, parts, flags, strict=True):
            parameter.grad = part.view_as(parameter) / dist.get_world_size() if users > 0 else None

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


# --- wrong: who asks whom

wrong("flags that overflow", "with 256 ranks the sum is 0 again", {"torch.int32": "torch.uint8"})
wrong("flags that are True and are added", "with 256 ranks the sum is 0 again", {"torch.int32": "torch.bool"})
wrong("no thought of it", "raised TypeError", {ASK: "", SKIP: "", ZEROS: ""})
wrong("skips what is None", "Some ranks have no gradient for what others have used", {ASK: "", ZEROS: ""})
wrong(
    "flags not waited for",
    "the ranks do not call the same collectives",
    {ASK: "    dist.all_reduce(used, async_op=True)\n", ZEROS: ""},
)
wrong(
    "only what all have used",
    "is missing: other ranks have used this parameter",
    {ASK: "    dist.all_reduce(used, op=dist.ReduceOp.MIN)\n"},
)
wrong(
    "rank 0 decides",
    "calls dist.broadcast, and dist.all_reduce is all that it may call",
    {ASK: "    dist.broadcast(used, 0)\n"},
)
wrong("flags by value", "is missing: other ranks have used this parameter", {
    "parameter.grad is not None for": "parameter.grad is not None and bool(parameter.grad.any()) for",
    SKIP: "        if by_how_many == 0:\n            parameter.grad = None\n            continue\n",
})  # fmt: skip
wrong(
    "flags of what this rank has used",
    "the ranks do not call the same collectives",
    {"if parameter.requires_grad]": "if parameter.grad is not None]"},
)


@wrong("asks once for each model", "other ranks have used")
def asks_once():
    known = {}

    def average_used(model):
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if id(model) not in known:
            used = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
            dist.all_reduce(used)
            known[id(model)] = used.tolist()
        for parameter, users in zip(parameters, known[id(model)], strict=True):
            if users:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()

    return (average_used,)


@wrong("one flag at a time", "put all flags into one tensor")
def one_flag_at_a_time():
    def average_used(model):
        for parameter in model.parameters():
            if parameter.requires_grad:
                used = torch.tensor(int(parameter.grad is not None))
                dist.all_reduce(used)
                if used:
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter)
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()

    return (average_used,)


@wrong("names gathered", "calls dist.all_gather, and dist.all_reduce is all that it may call")
def names_gathered():
    def average_used(model):
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, [name for name, parameter in named.items() if parameter.grad is not None])
        for name, parameter in named.items():
            if any(name in names for names in everyone):
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()

    return (average_used,)


# --- wrong: the numbers, and what stays

wrong("zeros for all", "leave its `.grad` None", {ASK: "", SKIP: ""})
wrong("zeros are not kept", "is missing: other ranks have used this parameter", {
    ZEROS: "        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad\n",
    SUM: "        dist.all_reduce(gradient)\n", MEAN: "        gradient /= dist.get_world_size()\n",
})  # fmt: skip
wrong(
    "the mean over those that used it",
    "is the mean over those ranks that used it",
    {"/= dist.get_world_size()": "/= by_how_many"},
)
wrong("sum", "is the sum over the ranks: divide by the world size", {MEAN: ""})
wrong("divides twice", "is divided by the world size twice", {MEAN: MEAN + MEAN})
wrong("three ranks always", "the gradient of", {"/= dist.get_world_size()": "/= 3"})
wrong("never waits", "never waits for", {SUM: MEAN, MEAN: "        dist.all_reduce(parameter.grad, async_op=True)\n"})
wrong("the gradient of ones that are frozen", "frozen", {
    "if parameter.requires_grad]": "]", SKIP: "", MEAN: MEAN,
})  # fmt: skip
wrong(
    "unused ones are frozen",
    "has another `requires_grad` than before",
    {SKIP: SKIP.replace("continue", "parameter.requires_grad_(False)\n            continue")},
)
wrong("train", "is in another mode", {NAME: NAME + "    model.train()\n"})
wrong("the order of the branches is put right", "attributes", {NAME: NAME + "    model.order = [0]\n"})
wrong("the library", "DistributedDataParallel, which does the exercise", {
    NAME: NAME + "    torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)\n"
})  # fmt: skip


@wrong("gradients of all models lie in one vector", "of the model of the step before is changed: do they share memory")
def shared_vector():
    vectors = {}

    def average_used(model):
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        used = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
        dist.all_reduce(used)
        start = 0
        for parameter, by_how_many in zip(parameters, used.tolist(), strict=True):
            if by_how_many:
                vector = vectors.setdefault(parameter.dtype, torch.empty(100_000, dtype=parameter.dtype))
                part = vector[start : start + parameter.numel()].view_as(parameter)
                start += parameter.numel()
                part.copy_(torch.zeros_like(part) if parameter.grad is None else parameter.grad)
                dist.all_reduce(part)
                part /= dist.get_world_size()
                parameter.grad = part

    return (average_used,)


@wrong("flags are the bits of one number", "raised ValueError: Overflow")
def bits_of_a_number():
    def average_used(model):
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        mine = sum(1 << number for number, parameter in enumerate(parameters) if parameter.grad is not None)
        used = torch.tensor([mine], dtype=torch.int64)
        dist.all_reduce(used, op=dist.ReduceOp.BOR)
        for number, parameter in enumerate(parameters):
            if used.item() >> number & 1:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()

    return (average_used,)


wrong("infinities are made numbers", "one has to come out", {MEAN: MEAN + "        parameter.grad.nan_to_num_()\n"})
wrong("zeros with a graph", "hangs on a graph", {
    "            parameter.grad = torch.zeros_like(parameter)\n": "            parameter.grad = parameter * 0\n"
})  # fmt: skip
wrong("flags only where something is missing", "the ranks do not call the same collectives", {
    "    dist.all_reduce(used)\n": "    if not used.all():\n        dist.all_reduce(used)\n    else:\n        used *= dist.get_world_size()\n"
})  # fmt: skip
wrong("flags for frozen ones, too", "frozen ones need none", {
    "    used = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)\n    dist.all_reduce(used)\n":
    "    every = list(model.parameters())\n"
    "    used = torch.tensor([parameter.grad is not None for parameter in every], dtype=torch.int64)\n    dist.all_reduce(used)\n"
    "    used = used[torch.tensor([parameter.requires_grad for parameter in every])]\n"
})  # fmt: skip
