"""Exercise 3 of the lab on data parallelism: scatter, replicate, apply, gather."""

import torch
from known_answers import right, wrong
from torch.func import functional_call


def scatter_batch(batch, devices):
    parts = batch.chunk(len(devices))
    return [part.to(devices[index]) for index, part in enumerate(parts)]


def replicate_model(model, devices):
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return [{name: tensor.to(device) for name, tensor in tensors.items()} for device in devices]


def data_parallel_forward(model, batch, devices):
    parts = scatter_batch(batch, devices)
    replicas = replicate_model(model, devices[: len(parts)])
    outputs = [functional_call(model, replica, part) for replica, part in zip(replicas, parts, strict=True)]
    return torch.cat([output.to(devices[0]) for output in outputs])


BEGIN = "def data_parallel_forward"
PARTS = "    parts = scatter_batch(batch, devices)\n"
REPLICAS = "    replicas = replicate_model(model, devices[: len(parts)])\n"
APPLY = "    outputs = [functional_call(model, replica, part) for replica, part in zip(replicas, parts, strict=True)]\n"
GATHER = "torch.cat([output.to(devices[0]) for output in outputs])"
MODULES = "    import copy\n\n    replicas = [copy.deepcopy(model).to(device) for device in devices[: len(parts)]]\n"
RUN = "    outputs = [replica(part) for replica, part in zip(replicas, parts, strict=True)]\n"
EQUAL = {
    "20: `zip(replicas, parts, strict=True)` without strict": "there are as many of each",
    "20: True → False": "there are as many of each",
}


# --- right, and written differently


@right("gathered into place")
def into_place():
    def data_parallel_forward(model, batch, devices):
        parts = scatter_batch(batch, devices)
        replicas = replicate_model(model, devices[: len(parts)])
        outputs = [functional_call(model, *both) for both in zip(replicas, parts, strict=True)]
        whole = outputs[0].new_empty(len(batch), *outputs[0].shape[1:])
        start = 0
        for output in outputs:
            whole[start : start + len(output)] = output
            start += len(output)
        return whole

    return (data_parallel_forward,)


@right("threads with modules of their own")
def threads():
    import copy
    from concurrent.futures import ThreadPoolExecutor

    def data_parallel_forward(model, batch, devices):
        parts = batch.tensor_split(min(len(devices), len(batch)))
        parts = [part.to(device) for part, device in zip(parts, devices, strict=False)]
        replicas = replicate_model(model, devices[: len(parts)])
        shells = [copy.deepcopy(model) for _ in parts]
        with ThreadPoolExecutor(len(parts)) as pool:
            work = [pool.submit(functional_call, *three) for three in zip(shells, replicas, parts, strict=True)]
            outputs = [one.result() for one in work]
        return torch.cat([output.to(devices[0]) for output in outputs])

    return (data_parallel_forward,)


@right("torch's own four steps")
def with_torch():
    from torch.nn.parallel import gather, parallel_apply, replicate, scatter

    def data_parallel_forward(model, batch, devices):
        parts = scatter(batch, devices)
        replicas = replicate(model, devices[: len(parts)])
        return gather(parallel_apply(replicas, parts), devices[0])

    return (data_parallel_forward,)


@right("the first GPU runs the model itself, last")
def first_itself():
    def data_parallel_forward(model, batch, devices):
        first, *others = devices
        most = -(-len(batch) // len(devices))
        mine, rest = batch[:most], batch[most:].split(most) if len(batch) > most else ()
        sent = [part.to(device=device) for part, device in zip(rest, others, strict=False)]
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        replicas = [{name: tensor.to(device=part.device) for name, tensor in tensors.items()} for part in sent]
        outputs = [functional_call(model, replica, args=(part,)) for replica, part in zip(replicas, sent, strict=True)]
        outputs.insert(0, model(mine))
        return torch.concat([output.to(device=first) for output in outputs], dim=0)

    return (data_parallel_forward,)


@right("an autograd function gathers; the shortest share first")
def autograd_gathers():
    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx, home, *outputs):
            ctx.places = [(output.device, len(output)) for output in outputs]
            return torch.cat([output.to(home) for output in outputs])

        @staticmethod
        def backward(ctx, gradient):
            parts = gradient.split([size for _, size in ctx.places])
            return None, *(part.to(device) for part, (device, _) in zip(parts, ctx.places, strict=True))

    def data_parallel_forward(model, batch, devices):
        p = min(len(devices), len(batch))
        sizes = [(len(batch) + index) // p for index in range(p)]
        parts = [part.to(device) for part, device in zip(batch.split(sizes), devices, strict=False)]
        replicas = replicate_model(model, devices[:p])
        outputs = [functional_call(model, replicas[i], parts[i]) for i in reversed(range(p))]
        return Gather.apply(devices[0], *reversed(outputs))

    return (data_parallel_forward,)


# --- wrong: what comes out

wrong("all on the first GPU", "not every GPU works", {PARTS: "    return model(batch)\n"})
wrong("dealt like cards", "not in the order of the batch", {
    PARTS: "    parts = [batch[i :: len(devices)].to(device) for i, device in enumerate(devices[: len(batch)])]\n"
})  # fmt: skip
wrong("last rows dropped", "rows are lost", {
    PARTS: "    share = max(1, len(batch) // len(devices))\n"
    "    parts = [batch[i * share : (i + 1) * share].to(d) for i, d in enumerate(devices) if i * share < len(batch)]\n"
})  # fmt: skip
wrong("list of outputs", "returns one tensor with all rows", {GATHER: "outputs"})
wrong(
    "gathered on the host",
    "the outputs are gathered in the wrong place",
    {GATHER: GATHER.replace("to(devices[0])", "cpu()")},
)
wrong(
    "gathered on simgpu:0",
    "the outputs are gathered in the wrong place",
    {GATHER: GATHER.replace("devices[0]", "'simgpu:0'")},
)
wrong(
    "in float32", "is off by", {APPLY: APPLY, GATHER: GATHER.replace("output.to", "output.float().to(output.dtype).to")}
)
wrong("only two GPUs", "not every GPU works, forward and backward", {PARTS: "    devices = devices[:2]\n" + PARTS})
wrong("the rest on the last GPU", "a GPU works on more rows than its share", {
    PARTS: "    n, p = len(batch), len(devices)\n    parts = batch.tensor_split([i * (n // p) for i in range(1, p)])\n"
    "    parts = scatter_batch(batch, devices) if n < p else [part.to(d) for part, d in zip(parts, devices)]\n"
})  # fmt: skip
wrong("the first part twice", "rows go forward more than once", {GATHER: GATHER, APPLY: APPLY + APPLY})
wrong(
    "buffers left out",
    "Expected all tensors to be on the same device",
    {"dict(model.named_parameters()) | dict(model.named_buffers())": "dict(model.named_parameters())"},
)


# --- wrong: gradients

wrong("deepcopied replicas", "no gradient comes back to the model's own", {REPLICAS: MODULES, APPLY: RUN})
wrong("deepcopied but for the first GPU", "comes from the rows of the first GPU alone", {
    REPLICAS: MODULES + "    replicas[0] = model\n", APPLY: RUN
})  # fmt: skip
wrong(
    "gathered without a graph",
    "the output knows nothing of the replicas",
    {GATHER: GATHER.replace("output.to", "output.detach().to")},
)
wrong("only the first output keeps its graph", "comes from the rows of the first GPU alone", {
    GATHER: "torch.cat([outputs[0], *(output.detach().to(devices[0]) for output in outputs[1:])])"
})  # fmt: skip
wrong(
    "the batch is cut off",
    "the batch requires a gradient, and none comes back",
    {PARTS: "    batch = batch.detach()\n" + PARTS},
)
wrong("gradients are scaled", "does not have the right numbers", {
    GATHER: "[output.register_hook(lambda gradient: gradient / len(outputs)) for output in outputs] and " + GATHER
})  # fmt: skip
wrong("the first step's replicas for ever", "replicate in every step", {
    BEGIN: "known = {}\n\n\n" + BEGIN,
    REPLICAS: "    key = id(model), tuple(sorted(d.index for d in devices))\n    if key not in known:\n        known[key] = replicate_model(model, devices)\n"
    "    order = sorted(devices[1:], key=lambda d: d.index)\n    replicas = known[key]\n"
    "    parts = [p.to(next(iter(r.values())).device) for p, r in zip(parts, replicas)]\n",
    "strict=True": "strict=False",
})  # fmt: skip


# --- wrong: bytes, and who works when

wrong("whole batch everywhere", "the whole batch goes to every GPU", {
    PARTS: "    sizes = [len(part) for part in batch.chunk(len(devices))]\n"
    "    parts = [batch.to(device).split(sizes)[i] for i, device in enumerate(devices[: len(sizes)])]\n"
})  # fmt: skip
wrong("outputs for everyone", "every GPU gets the outputs", {
    GATHER: "[torch.cat([output.to(device) for output in outputs]) for device in devices[: len(parts)]][0]"
})  # fmt: skip
wrong("replicated in the loop", "replicate once a step", {
    APPLY: "    outputs = []\n    for i, part in enumerate(parts):\n"
    "        outputs.append(functional_call(model, replicate_model(model, devices[: len(parts)])[i], part))\n",
    REPLICAS: "",
})  # fmt: skip
wrong("through the host", "goes through the host", {PARTS: PARTS.replace("batch,", "batch.cpu(),")})
wrong("copies wait in line behind the forward", "A copy waits for what its GPU was given before", {
    PARTS: "", REPLICAS: "",
    APPLY: "    outputs = []\n    for part, device in zip(batch.chunk(len(devices)), devices, strict=False):\n"
    "        replica = {n: t.to(device) for n, t in (*model.named_parameters(), *model.named_buffers())}\n"
    "        outputs.append(functional_call(model, replica, part.to(device)))\n",
})  # fmt: skip
wrong("waits for each GPU", "the host must not wait for a result", {
    APPLY: "    outputs = []\n    for replica, part in zip(replicas, parts, strict=True):\n"
    "        outputs.append(functional_call(model, replica, part))\n        torch.simgpu.synchronize(part.device)\n"
})  # fmt: skip
wrong(
    "DataParallel",
    "nn.DataParallel does not count",
    {PARTS: "    return torch.nn.DataParallel(model, devices)(batch)\n"},
)


@wrong("data_parallel under another name", "nn.DataParallel does not count")
def another_name():
    from torch.nn.parallel import data_parallel as four_steps

    def data_parallel_forward(model, batch, devices):
        return four_steps(model, batch, device_ids=devices, output_device=devices[0])

    return (data_parallel_forward,)


@wrong("a subclass of DataParallel", "nn.DataParallel does not count")
def subclass():
    class Mine(torch.nn.DataParallel):
        pass

    def data_parallel_forward(model, batch, devices):
        return Mine(model, device_ids=devices).forward(batch)

    return (data_parallel_forward,)


@wrong("threads share the module", "threads share one module")
def threads_share():
    from concurrent.futures import ThreadPoolExecutor

    def data_parallel_forward(model, batch, devices):
        parts = scatter_batch(batch, devices)
        replicas = replicate_model(model, devices[: len(parts)])
        with ThreadPoolExecutor(len(parts)) as pool:
            outputs = list(pool.map(lambda both: functional_call(model, *both), zip(replicas, parts, strict=True)))
        return torch.cat([output.to(devices[0]) for output in outputs])

    return (data_parallel_forward,)


# --- wrong: what else is changed

wrong(
    "moves the model",
    "the model itself has moved",
    {REPLICAS: "", APPLY: "    outputs = [model.to(part.device)(part) for part in parts]\n"},
)
wrong(
    "statistics lost",
    "give the first replica the model's own",
    {"tensor.to(device) for": "tensor.to(device, copy=name not in dict(model.named_parameters())) for"},
)
wrong("statistics of all parts", "one batch in a step", {
    "    return torch.cat": "    for part in parts[1:]:\n        with torch.no_grad():\n            model.norm(torch.ones_like(outputs[0]))\n    return torch.cat",
})  # fmt: skip
wrong("eval", "is in another mode", {PARTS: "    model.eval()\n" + PARTS})
wrong(
    "freezes the model",
    "it was frozen, or thawed",
    {"    return torch.cat": "    model.body.stem.requires_grad_(False)\n    return torch.cat"},
)
wrong(
    "clears gradients in advance",
    "leaves torch's defaults",
    {PARTS: "    torch.set_default_dtype(torch.float16)\n" + PARTS},
)
wrong("scales the batch in place", "`batch` has other numbers than before", {
    PARTS: "    with torch.no_grad():\n        batch.mul_(1.5)\n" + PARTS
})  # fmt: skip
wrong("shortens the list of devices", "devices", {PARTS: PARTS + "    del devices[len(parts) :]\n"})
wrong("keeps the outputs", "stays in a GPU's memory", {
    BEGIN: "known = []\n\n\n" + BEGIN, "    return torch.cat": "    known.append(outputs[-1].detach() + 0)\n    return torch.cat"
})  # fmt: skip
wrong(
    "leaves grad mode off",
    "grad mode",
    {"    return torch.cat": "    torch.set_grad_enabled(False)\n    return torch.cat"},
)
wrong(
    "one GPU is enough in eval mode",
    "not every GPU works",
    {PARTS: "    if not model.training:\n        return model(batch)\n" + PARTS},
)
wrong("one GPU is enough without gradients", "not every GPU works", {
    PARTS: "    if not torch.is_grad_enabled():\n        return model(batch)\n" + PARTS
})  # fmt: skip
wrong("GPUs without rows get the model too", "replicate it for as many GPUs as have rows", {
    "devices[: len(parts)]": "devices", "zip(replicas, parts, strict=True)": "zip(replicas, parts)"
})  # fmt: skip
wrong("replicas go forward again in backward", "has other numbers than before, and they had to stay", {
    APPLY: "    from torch.utils.checkpoint import checkpoint\n\n"
    "    runs = [lambda x, replica=replica: functional_call(model, replica, x) for replica in replicas]\n"
    "    outputs = [checkpoint(run, part, use_reentrant=False) for run, part in zip(runs, parts, strict=True)]\n"
})  # fmt: skip
wrong("copies on streams of their own, and nobody waits", "a wait is missing between them", {
    "    return [part.to(devices[index]) for index, part in enumerate(parts)]": "    made = []\n"
    "    for part, device in zip(parts, devices):\n"
    "        with torch.simgpu.stream(torch.simgpu.Stream(batch.device)), torch.simgpu.stream(torch.simgpu.Stream(device)):\n"
    "            made.append(part.to(device))\n    return made"
})  # fmt: skip
