"""Exercise 2 of the lab on data parallelism: a dict of the model's tensors for each GPU."""

import torch
from known_answers import right, wrong


def replicate_model(model, devices):
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return [{name: tensor.to(device) for name, tensor in tensors.items()} for device in devices]


ALL = "tensors = dict(model.named_parameters()) | dict(model.named_buffers())"
GIVE = "return [{name: tensor.to(device) for name, tensor in tensors.items()} for device in devices]"


# --- right, and written differently


@right("torch's broadcast for the parameters")
def broadcast():
    from torch.nn.parallel._functions import Broadcast

    def replicate_model(model, devices):
        parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        copies = Broadcast.apply(devices, *parameters.values())
        replicas = []
        for index, device in enumerate(devices):
            mine = copies[index * len(parameters) : (index + 1) * len(parameters)]
            replica = dict(zip(parameters, mine, strict=False))
            replica.update((name, buffer.to(device)) for name, buffer in buffers.items())
            replicas.append(replica)
        return replicas

    return (replicate_model,)


@right("passed on from GPU to GPU, found layer by layer")
def passed_on():
    def replicate_model(model, devices):
        replica = {}
        for prefix, module in model.named_modules():
            for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                if not any(tensor is other for other in replica.values()):
                    replica[f"{prefix}.{name}".lstrip(".")] = tensor
        replicas = [replica]
        for device in devices[1:]:  # each GPU has its copy from the one before
            replicas.append({name: tensor.to(device) for name, tensor in replicas[-1].items()})
        return replicas

    return (replicate_model,)


@right("one copy for both names of a shared weight")
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
        _, *others = devices
        replicas = [{**dict(model.named_parameters()), **dict(model.named_buffers())}]
        for device in others:
            replica = {}
            for name, parameter in model.named_parameters():
                replica[name] = Send.apply(parameter, device)
            for name, buffer in model.named_buffers():
                replica[name] = torch.empty_like(buffer, device=device).copy_(buffer)
            replicas.append(replica)
        return replicas

    return (replicate_model,)


# --- wrong: which tensors

wrong("buffers left out", "a replica has buffers too", {ALL: "tensors = dict(model.named_parameters())"})
wrong("only what is saved", "state_dict leaves out buffers that need not be saved", {
    ALL: "tensors = model.state_dict(keep_vars=True)"
})  # fmt: skip
wrong("first layers only", "layers may hold layers", {
    ALL: "tensors = {}\n    for child, module in model.named_children():\n        for name, tensor in (*module.named_parameters(recurse=False), "
    "*module.named_buffers(recurse=False)):\n            tensors[f'{child}.{name}'] = tensor"
})  # fmt: skip
wrong("one too few", "one dict for each GPU", {"in devices]": "in devices[1:]]"})
wrong("modules", "a list with one dict for each GPU", {GIVE: "return torch.nn.parallel.replicate(model, devices)"})
wrong(
    "lists",
    "a list with one dict for each GPU",
    {GIVE: "return [[tensor.to(d) for tensor in tensors.values()] for d in devices]"},
)
wrong("frozen ones are left out", "is missing", {
    "dict(model.named_parameters())": "{name: p for name, p in model.named_parameters() if p.requires_grad}"
})  # fmt: skip
wrong("the first ten", "is missing", {"in tensors.items()}": "in list(tensors.items())[:10]}"})


# --- wrong: the graph

wrong("deepcopy", "gradients end there and never reach the model", {
    GIVE: "import copy\n\n    twins = [model, *(copy.deepcopy(model).to(device) for device in devices[1:])]\n"
    "    return [dict(twin.named_parameters()) | dict(twin.named_buffers()) for twin in twins]"
})  # fmt: skip
wrong("new parameters", "is a new parameter", {
    GIVE: GIVE.replace("tensor.to(device)", "torch.nn.Parameter(tensor.to(device)) if tensor.requires_grad else tensor.to(device)")
})  # fmt: skip
wrong(
    "no_grad",
    "knows nothing of the model's parameter",
    {"def replicate_model": "@torch.no_grad()\ndef replicate_model"},
)
wrong("state_dict", "knows nothing of the model's parameter", {ALL: "tensors = model.state_dict()"})
wrong("detached but for the first", "knows nothing of the model's parameter", {
    "tensor.to(device) for": "tensor if device == devices[0] else tensor.detach().to(device) for"
})  # fmt: skip
wrong("thaws what is frozen", "is frozen in the model", {
    "tensor.to(device) for": "tensor.to(device).requires_grad_(name in dict(model.named_parameters())) if device != devices[0] else tensor for"
})  # fmt: skip
wrong("gradients are rounded", "is off by", {
    "def replicate_model": "class Send(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, tensor, device):\n        ctx.home = tensor.device\n"
    "        return tensor.to(device)\n\n    @staticmethod\n    def backward(ctx, gradient):\n"
    "        return gradient.float().to(ctx.home).to(gradient.dtype), None\n\n\ndef replicate_model",
    "tensor.to(device) for": "tensor if device == devices[0] else Send.apply(tensor, device) for",
})  # fmt: skip
wrong("mean of the gradients", "is the mean over the replicas", {
    "def replicate_model": "class Send(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, tensor, device, count):\n        ctx.home, ctx.count = tensor.device, count\n"
    "        return tensor.to(device, copy=True) if tensor.device != device else tensor.view_as(tensor)\n\n    @staticmethod\n    def backward(ctx, gradient):\n"
    "        return (gradient / ctx.count).to(ctx.home), None, None\n\n\ndef replicate_model",
    "tensor.to(device) for": "Send.apply(tensor, device, len(devices)) if tensor.requires_grad else tensor.to(device) for",
})  # fmt: skip


# --- wrong: where, and how it gets there

wrong("buffers shared", "the replicas share it with the model", {
    "tensor.to(device) for": "tensor.to(device) if name in dict(model.named_parameters()) else tensor for"
})  # fmt: skip
wrong("a copy for GPU 0 too", "has the model already", {"tensor.to(device) for": "tensor.clone().to(device) for"})
wrong("statistics of GPU 0 are lost", "a copy's statistics are lost", {
    "tensor.to(device) for": "tensor.to(device, copy=name not in dict(model.named_parameters())) for"
})  # fmt: skip
wrong("moves the model", "the model itself has moved", {
    GIVE: "replicas = []\n    for device in devices:\n        twin = model.to(device)\n"
    "        replicas.append(dict(twin.named_parameters()) | dict(twin.named_buffers()))\n    return replicas"
})  # fmt: skip
wrong(
    "names made up",
    "is in the wrong place",
    {"for device in devices": "for device in [f'simgpu:{i}' for i in range(len(devices))]"},
)
wrong("a shared weight is sent twice", "one that two layers share too", {
    "model.named_parameters()": "model.named_parameters(remove_duplicate=False)"
})  # fmt: skip
wrong("through the host", "tensors go through the host", {
    GIVE: "there = {name: tensor.cpu() for name, tensor in tensors.items()}\n"
    "    return [tensors] + [{name: tensor.to(d) for name, tensor in there.items()} for d in devices[1:]]"
})  # fmt: skip
wrong("for every GPU of the machine", "other bytes move", {
    GIVE: "everywhere = [torch.device('simgpu', i) for i in range(torch.simgpu.device_count())]\n"
    "    all_of_them = {d: {name: tensor.to(d) for name, tensor in tensors.items()} for d in everywhere}\n"
    "    return [all_of_them[d] for d in devices]"
})  # fmt: skip
wrong("twice at the same time", "needs more memory than a replica", {
    GIVE: GIVE.replace("return ", "replicas = ")
    + "\n    spare = [[(t.clone(), t.clone()) for t in one.values()] for one in replicas]\n    del spare\n    return replicas"
})  # fmt: skip


# --- wrong: what else is changed

wrong("eval", "is in another mode", {ALL: "model.eval()\n    " + ALL})
wrong("thaws the model", "it was frozen, or thawed", {ALL: "model.requires_grad_(True)\n    " + ALL})
wrong("replicas are kept", "as they are now", {
    "def replicate_model": "known = {}\n\n\ndef replicate_model",
    GIVE: "key = id(model), tuple(sorted(d.index for d in devices))\n    if key not in known:\n"
    "        known[key] = {d: {name: tensor.to(d) for name, tensor in tensors.items()} for d in devices}\n"
    "    return [known[key][d] for d in devices]",
})  # fmt: skip
wrong("keeps them for nothing", "stays in a GPU's memory", {
    "def replicate_model": "known = []\n\n\ndef replicate_model", GIVE: GIVE.replace("return ", "known.append(") + ")\n    return known[-1]",
})  # fmt: skip
wrong("notes it in the model", "attributes that were added", {ALL: ALL + "\n    model.replicated = True"})
wrong("leaves a hook", "a hook more than before", {ALL: ALL + "\n    model.register_forward_hook(lambda *_: None)"})
wrong("resets the statistics", "has other numbers than before", {ALL: "model.norm.reset_running_stats()\n    " + ALL})
wrong(
    "unties",
    "was replaced by a new object",
    {ALL: "model.body.again.weight = torch.nn.Parameter(model.body.again.weight.detach())\n    " + ALL},
)


wrong(
    "names as DistributedDataParallel has them",
    "the model has no module.",
    {"{name: tensor": "{'module.' + name: tensor"},
)
wrong("whole numbers are left out", "is missing. named_buffers() finds all", {
    "in tensors.items()}": "in tensors.items() if tensor.is_floating_point()}"
})  # fmt: skip


@right("copied into place")
def into_place():
    def replicate_model(model, devices):
        own = dict(model.named_parameters()) | dict(model.named_buffers())
        there = lambda tensor, device: torch.empty_like(tensor, device=device, requires_grad=False).copy_(tensor)  # noqa: E731
        return [own, *({name: there(one, device) for name, one in own.items()} for device in devices[1:])]

    return (replicate_model,)


wrong("the list of devices is emptied", "`devices` is not as before (length)", {
    GIVE: GIVE.replace("return", "replicas =") + "\n    devices.clear()\n    return replicas"
})  # fmt: skip
