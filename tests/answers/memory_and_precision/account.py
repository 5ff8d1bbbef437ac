"""Exercise 1 of the lab on memory and precision: the bytes of a step. What is not here is in the official solution."""

import math

import torch
from known_answers import right, wrong

ROUND, KEY = "return -(-nbytes // 512) * 512", "kept[storage.data_ptr()] = storage"
ALL, PACK = "sum(blocks(one.nbytes) for one in parameters)", "    pack(result)\n"
right("copies instead of tensors", {"        return tensor\n": "        return tensor.clone()\n"})
right("storages kept by address, taken away afterwards", {
    "        if storage.data_ptr() not in before:\n            kept": "        kept",
    PACK: PACK + "    for one in before:\n        kept.pop(one, None)\n",
    "blocks(one.nbytes) for one in parameters": "one.nbytes + -one.nbytes % 512 for one in set(parameters)",
})  # fmt: skip
right("numpy's integers", {ROUND: "import numpy\n\n    return numpy.int64(-(-nbytes // 512) * 512)"})


@right("a walk through the graph's saved tensors")
def walked():
    def size(storage):
        return 512 * math.ceil(storage.nbytes() / 512)

    def account(model, inputs, loss, state):
        known = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers(), *inputs)}
        found, nodes, seen = {}, [], set()
        end = loss()
        found[end.untyped_storage()._cdata] = size(end.untyped_storage())
        nodes.append(end.grad_fn)
        while nodes:
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            nodes += [after for after, _ in node.next_functions]
            for name in dir(node):
                if name.startswith("_saved_"):
                    value = getattr(node, name)
                    for one in value if isinstance(value, (list, tuple)) else [value]:
                        if isinstance(one, torch.Tensor) and one.untyped_storage()._cdata not in known:
                            found[one.untyped_storage()._cdata] = size(one.untyped_storage())
        weights = [(size(p.untyped_storage()), p.requires_grad) for p in model.parameters()]
        learning = sum(n for n, learns in weights if learns)
        return {"optimizer state": learning * state, "gradients": learning, "activations": sum(found.values()),
                "parameters": sum(n for n, _ in weights)}  # fmt: skip

    return (account,)


wrong("each tensor once, and not each storage", "the bytes of the activations", {KEY: "kept[id(tensor)] = storage"})
wrong("a backward pass", "predicted without a backward pass", {PACK: PACK + "    result.backward()\n"})
wrong("all parameters have the type of the first", "the bytes of the parameters", {
    ALL: "sum(blocks(parameters[0].itemsize * one.numel()) for one in parameters)"
})  # fmt: skip
wrong("a tuple", "returns a dict", {"    return {\n": "    return 1, {\n"})
wrong("megabytes", "the bytes of the gradients", {'"gradients": gradients': '"gradients": gradients / 1e6'})
wrong("frozen for good", "changes `model`", {
    "    kept = {}\n": "    kept = {}\n    for one in trainable[:1]:\n        one.requires_grad_(False)\n"
})  # fmt: skip
wrong("in eval, and then all in train", "changes `model`", {
    "        result = loss()\n": "        model.eval()\n        result = loss()\n        model.train()\n"
})  # fmt: skip
wrong("what was said of this model before is said again", "the optimizer state, with one state more", {
    "def account(model, inputs, loss, state):\n": "SAID = {}\n\n\ndef account(model, inputs, loss, state):\n",
    "    return {\n": "    return SAID.setdefault(id(model), {\n",
    "kept.values()),\n    }": "kept.values()),\n    })",
})  # fmt: skip
