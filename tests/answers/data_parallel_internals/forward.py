"""Exercise 3 of the lab on data parallelism: all four steps. What is not here is in the official solution."""

from known_answers import right, wrong

BEGIN = "def data_parallel_forward"
PARTS = "parts = scatter_batch(batch, devices)"
REPLICAS = "replicas = replicate_model(model, devices[: len(parts)])"
APPLY = "outputs = [functional_call(model, replica, part) for replica, part in zip(replicas, parts, strict=True)]"
GATHER = "torch.cat([output.to(devices[0]) for output in outputs])"
POOL = "from concurrent.futures import ThreadPoolExecutor\n    with ThreadPoolExecutor(len(parts)) as pool:\n        "
RUN = "outputs = list(pool.map(functional_call, {}, replicas, parts))"
CLASS = """class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, home, *outputs):
        ctx.places = [(output.device, len(output)) for output in outputs]
        return torch.cat([output.to(home) for output in outputs])

    @staticmethod
    def backward(ctx, gradient):
        parts = gradient.split([size for _, size in ctx.places])
        return None, *(part.to(device) for part, (device, _) in zip(parts, ctx.places, strict=True))


def data_parallel_forward"""
right("gathered into place", {
    "return " + GATHER: "whole, start = outputs[0].new_empty(len(batch), *outputs[0].shape[1:]), 0\n"
    "    for output in outputs:\n        whole[start : start + len(output)] = output\n        start += len(output)\n"
    "    return whole"
})  # fmt: skip
right("threads with modules of their own, as even as possible", {
    PARTS: "parts = batch.tensor_split(min(len(devices), len(batch)))\n"
    "    parts = [part.to(device) for part, device in zip(parts, devices, strict=False)]",
    APPLY: POOL + RUN.format("[__import__('copy').deepcopy(model) for _ in parts]"),
})  # fmt: skip
right("torch's own four steps", {
    PARTS: "from torch.nn.parallel import gather, parallel_apply, replicate, scatter\n\n"
    "    parts = scatter(batch, devices)\n    replicas = replicate(model, devices[: len(parts)])\n"
    "    return gather(parallel_apply(replicas, parts), devices[0])"
})  # fmt: skip
right("the first GPU runs the model itself, last", {
    APPLY: APPLY.replace("zip(", "list(zip(")[:-1] + ")[1:]]\n    outputs.insert(0, model(parts[0]))"
})  # fmt: skip
right("an autograd function gathers; the shortest share first", {
    BEGIN: CLASS, GATHER: "Gather.apply(devices[0], *reversed(outputs))",
    PARTS: "p = min(len(devices), len(batch))\n    sizes = [(len(batch) + index) // p for index in range(p)]\n"
    "    parts = [part.to(device) for part, device in zip(batch.split(sizes), devices, strict=False)]",
    APPLY: "outputs = [functional_call(model, replicas[i], parts[i]) for i in reversed(range(p))]",
})  # fmt: skip
wrong("list of outputs", "not one tensor", {GATHER: "outputs"})
wrong("gathered on the host", "not on devices[0]", {GATHER: GATHER.replace("to(devices[0])", "cpu()")})
wrong("gathered on simgpu:0", "not on devices[0]", {GATHER: GATHER.replace("devices[0]", "'simgpu:0'")})
wrong("in float32", "the result, in step 1", {GATHER: GATHER.replace("put.to", "put.float().to(output.dtype).to")})
wrong("the rest on the last GPU", "the most rows on a GPU", {
    PARTS: "n, p = len(batch), len(devices)\n    parts = batch.tensor_split([i * (n // p) for i in range(1, p)])\n"
    "    parts = scatter_batch(batch, devices) if n < p else [part.to(d) for part, d in zip(parts, devices)]"
})  # fmt: skip
wrong("everything twice", "rows that go forward", {APPLY: APPLY + "\n    " + APPLY})
wrong("buffers left out", "Expected all tensors to be on the same device", {" | dict(model.named_buffers())": ""})
wrong("gathered without a graph", "knows nothing of the replicas", {GATHER: GATHER.replace(".to", ".detach().to")})
wrong("replicas for ever", "stays in a GPU's memory", {
    BEGIN: "known = {}\n\n\n" + BEGIN,
    REPLICAS: "replicas = known.setdefault(tuple(devices), replicate_model(model, devices[: len(parts)]))",
})  # fmt: skip
wrong("outputs for everyone", "beside the model and their own rows", {
    GATHER: "[torch.cat([output.to(device) for output in outputs]) for device in devices[: len(parts)]][0]"
})  # fmt: skip
wrong("replicated in the loop", "copy everything first, then run", {
    REPLICAS: "", APPLY: "outputs = []\n    for i, part in enumerate(parts):\n"
    "        outputs.append(functional_call(model, replicate_model(model, devices[: len(parts)])[i], part))",
})  # fmt: skip
wrong("through the host", "tensors go through the host", {PARTS: PARTS.replace("batch,", "batch.cpu(),")})
wrong("copies wait in line behind the forward", "copy everything first, then run", {
    REPLICAS: "", APPLY: "outputs = []\n    for part, device in zip(batch.chunk(len(devices)), devices, strict=False):\n"
    "        (replica,) = replicate_model(model, [device])\n"
    "        outputs.append(functional_call(model, replica, part.to(device)))", PARTS: "",
})  # fmt: skip
wrong("waits for each GPU", "the host waits for a result", {
    APPLY: "outputs = []\n    for replica, part in zip(replicas, parts, strict=True):\n"
    "        outputs.append(functional_call(model, replica, part))\n        torch.simgpu.synchronize(part.device)"
})  # fmt: skip
wrong("DataParallel", "nn.DataParallel does not count", {PARTS: "return torch.nn.DataParallel(model, devices)(batch)"})
wrong("threads share the module", "do threads share a module?", {APPLY: POOL + RUN.format("[model] * len(parts)")})
wrong("moves the model", ".to() of a module moves the module itself", {
    REPLICAS: "", APPLY: "outputs = [model.to(part.device)(part) for part in parts]"
})  # fmt: skip
wrong("eval", "train() or eval()", {PARTS: "model.eval()\n    " + PARTS})
wrong("one GPU is enough in eval mode", "the most rows on a GPU", {
    PARTS: "if not model.training:\n        return model(batch)\n    " + PARTS
})  # fmt: skip
wrong("copies on streams of their own, and nobody waits", "a wait is missing", {
    "return [part.to(devices[index]) for index, part in enumerate(parts)]": "made = []\n"
    "    for part, device in zip(parts, devices):\n        stream = torch.simgpu.stream\n"
    "        with stream(torch.simgpu.Stream(batch.device)), stream(torch.simgpu.Stream(device)):\n"
    "            made.append(part.to(device))\n    return made"
})  # fmt: skip
