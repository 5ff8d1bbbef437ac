"""Exercise 3 of the lab on data parallelism: all four steps. What is not here is in the official solution."""

from known_answers import right, wrong

PARTS = "parts = scatter_batch(batch, devices)"
REPLICAS = "replicas = replicate_model(model, devices[: len(parts)])"
APPLY = "outputs = [functional_call(model, replica, part) for replica, part in zip(replicas, parts, strict=True)]"
GATHER = "torch.cat([output.to(devices[0]) for output in outputs])"
POOL = "from concurrent.futures import ThreadPoolExecutor\n    with ThreadPoolExecutor(len(parts)) as pool:\n        "
RUN = "outputs = list(pool.map(functional_call, {}, replicas, parts))"
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
wrong("list of outputs", "not one tensor", {GATHER: "outputs"})
wrong("gathered without a graph", "knows nothing of the replicas", {GATHER: GATHER.replace(".to", ".detach().to")})
wrong("replicated in the loop", "copy everything first, then run", {
    REPLICAS: "", APPLY: "outputs = []\n    for i, part in enumerate(parts):\n"
    "        outputs.append(functional_call(model, replicate_model(model, devices[: len(parts)])[i], part))",
})  # fmt: skip
wrong("threads share the module", "do threads share a module?", {APPLY: POOL + RUN.format("[model] * len(parts)")})
wrong("moves the model", ".to() of a module moves the module itself", {
    REPLICAS: "", APPLY: "outputs = [model.to(part.device)(part) for part in parts]"
})  # fmt: skip
