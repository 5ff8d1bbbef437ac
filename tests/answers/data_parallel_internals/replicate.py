"""Exercise 2 of the lab on data parallelism: a dict for each GPU. What is not here is in the official solution."""

import torch
from known_answers import right, wrong

ALL = "tensors = dict(model.named_parameters()) | dict(model.named_buffers())"
GIVE = "return [{name: tensor.to(device) for name, tensor in tensors.items()} for device in devices]"
SEND, BEGIN = "tensor.to(device) for", "def replicate_model"
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


wrong("buffers left out", "it has buffers too", {ALL: "tensors = dict(model.named_parameters())"})
wrong("deepcopy", "gradients end there and never reach the model", {
    GIVE: "import copy\n\n    twins = [model, *(copy.deepcopy(model).to(device) for device in devices[1:])]\n"
    "    return [dict(twin.named_parameters()) | dict(twin.named_buffers()) for twin in twins]"
})  # fmt: skip
wrong("no_grad", "knows nothing of the model's parameter", {BEGIN: "@torch.no_grad()\n" + BEGIN})
wrong("a copy for GPU 0 too", "devices[0] has the model already", {SEND: "tensor.clone().to(device) for"})
wrong("moves the model", "moves the module itself", {
    GIVE: "replicas = []\n    for device in devices:\n        twin = model.to(device)\n"
    "        replicas.append(dict(twin.named_parameters()) | dict(twin.named_buffers()))\n    return replicas"
})  # fmt: skip
