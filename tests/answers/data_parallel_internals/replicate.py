"""Exercise 2 of the lab on data parallelism: a dict for each GPU. What is not here is in the official solution."""

import torch
from known_answers import right, wrong

ALL = "tensors = dict(model.named_parameters()) | dict(model.named_buffers())"
GIVE = "return [{name: tensor.to(device) for name, tensor in tensors.items()} for device in devices]"
SEND, BEGIN = "tensor.to(device) for", "def replicate_model"
right("copied into place", {
    SEND: "tensor if device == devices[0] else torch.empty_like(tensor, device=device, requires_grad=False).copy_(tensor) for"
})  # fmt: skip
right("passed on from GPU to GPU", {
    GIVE: "replicas = [tensors]\n    for device in devices[1:]:\n"
    "        replicas.append({name: tensor.to(device) for name, tensor in replicas[-1].items()})\n    return replicas"
})  # fmt: skip


@right("torch's broadcast for the parameters")
def broadcast():
    from torch.nn.parallel._functions import Broadcast

    def replicate_model(model, devices):
        parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        copies = Broadcast.apply(devices, *parameters.values())
        replicas = []
        for index, device in enumerate(devices):
            mine = copies[index * len(parameters) : (index + 1) * len(parameters)]
            replica = parameters if index == 0 else dict(zip(parameters, mine, strict=False))
            replicas.append(replica | {name: buffer.to(device) for name, buffer in buffers.items()})
        return replicas

    return (replicate_model,)


@right("one copy for both names of a shared weight; a tuple")
def both_names():
    def replicate_model(model, devices):
        names = list(model.named_parameters(remove_duplicate=False)) + list(model.named_buffers())
        replicas = []
        for device in devices:
            copies = {id(tensor): tensor.to(device) for tensor in {id(one): one for _, one in names}.values()}
            replicas.append({name: copies[id(tensor)] for name, tensor in names})
        return tuple(replicas)

    return (replicate_model,)


@right("an autograd function of one's own")
def autograd_function():
    class Send(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor, device):
            ctx.home = tensor.device
            return tensor.detach().to(device)

        @staticmethod
        def backward(ctx, gradient):
            return gradient.to(ctx.home), None

    def replicate_model(model, devices):
        own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        return [own] + [{name: Send.apply(one, device) for name, one in own.items()} for device in devices[1:]]

    return (replicate_model,)


wrong("buffers left out", "a replica has buffers too", {ALL: "tensors = dict(model.named_parameters())"})
wrong("only what is saved", "named_buffers() finds all", {ALL: "tensors = model.state_dict(keep_vars=True)"})
wrong("first layers only", "layers may hold layers", {
    ALL: "tensors = dict(model.named_buffers())\n    for child, module in model.named_children():\n"
    "        for name, tensor in module.named_parameters(recurse=False):\n            tensors[f'{child}.{name}'] = tensor"
})  # fmt: skip
wrong("one too few", "one dict for each GPU", {"in devices]": "in devices[1:]]"})
wrong("modules", "one dict for each GPU", {GIVE: "return torch.nn.parallel.replicate(model, devices)"})
wrong("frozen ones are left out", "is missing in replica 0", {
    "dict(model.named_parameters())": "{name: p for name, p in model.named_parameters() if p.requires_grad}"
})  # fmt: skip
wrong("whole numbers are left out", "named_buffers() finds all", {
    "in tensors.items()}": "in tensors.items() if tensor.is_floating_point()}"
})  # fmt: skip
wrong("names as DistributedDataParallel has them", "begin with module.", {"{name: tensor": "{'module.' + name: tensor"})
wrong("deepcopy", "gradients end there and never reach the model", {
    GIVE: "import copy\n\n    twins = [model, *(copy.deepcopy(model).to(device) for device in devices[1:])]\n"
    "    return [dict(twin.named_parameters()) | dict(twin.named_buffers()) for twin in twins]"
})  # fmt: skip
wrong("new parameters", "is a new parameter", {
    SEND: "tensor if device == devices[0] else torch.nn.Parameter(tensor.to(device), tensor.requires_grad) for"
})  # fmt: skip
wrong("no_grad", "knows nothing of the model's parameter", {BEGIN: "@torch.no_grad()\n" + BEGIN})
wrong("detached but for the first", "knows nothing of the model's parameter", {
    SEND: "tensor if device == devices[0] else tensor.detach().to(device) for"
})  # fmt: skip
wrong("buffers shared", "the replicas share it with the model", {
    SEND: "tensor.to(device) if name in dict(model.named_parameters()) else tensor for"
})  # fmt: skip
wrong("a copy for GPU 0 too", "devices[0] has the model already", {SEND: "tensor.clone().to(device) for"})
wrong("moves the model", "moves the module itself", {
    GIVE: "replicas = []\n    for device in devices:\n        twin = model.to(device)\n"
    "        replicas.append(dict(twin.named_parameters()) | dict(twin.named_buffers()))\n    return replicas"
})  # fmt: skip
wrong("names made up", "is in the wrong place", {
    "for device in devices": "for device in [f'simgpu:{i}' for i in range(len(devices))]"
})  # fmt: skip
wrong("a shared weight is sent twice", "one that two layers share too", {
    "model.named_parameters()": "model.named_parameters(remove_duplicate=False)"
})  # fmt: skip
wrong("through the host", "tensors go through the host", {
    GIVE: "there = {name: tensor.cpu() for name, tensor in tensors.items()}\n"
    "    return [tensors] + [{name: tensor.to(d) for name, tensor in there.items()} for d in devices[1:]]"
})  # fmt: skip
wrong("eval", "train() or eval()", {ALL: "model.eval()\n    " + ALL})
wrong("resets the statistics", "the numbers in the model's", {ALL: "model.norm.reset_running_stats()\n    " + ALL})
wrong("replicas are kept", "stays in a GPU's memory", {
    BEGIN: "known = {}\n\n\n" + BEGIN, GIVE: f"known[len(devices)] = known.get(len(devices)) or {GIVE[7:]}\n    return known[len(devices)]"
})  # fmt: skip
wrong("keeps them for nothing", "stays in a GPU's memory", {
    BEGIN: "known = []\n\n\n" + BEGIN, GIVE: f"known.append({GIVE[7:]})\n    return known[-1]"
})  # fmt: skip
wrong("the list of devices is emptied", "changes `devices`", {
    GIVE: GIVE.replace("return", "replicas =") + "\n    devices.clear()\n    return replicas"
})  # fmt: skip
