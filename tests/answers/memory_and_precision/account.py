"""Exercise 1 of the lab on memory and precision: the bytes of a step, predicted on the CPU."""

import torch
from known_answers import right, wrong
from torch.autograd.graph import saved_tensors_hooks


def blocks(nbytes):
    return -(-nbytes // 512) * 512


def account(model, inputs, loss, state):
    parameters = list(model.parameters())
    trainable = [one for one in parameters if one.requires_grad]
    before = {one.untyped_storage().data_ptr() for one in [*parameters, *model.buffers(), *inputs]}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in before:
            kept[storage.data_ptr()] = storage
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = loss()
    pack(result)
    gradients = sum(blocks(one.nbytes) for one in trainable)
    return {
        "parameters": sum(blocks(one.nbytes) for one in parameters),
        "gradients": gradients,
        "optimizer state": state * gradients,
        "activations": sum(blocks(storage.nbytes()) for storage in kept.values()),
    }


EQUAL = {"17: without `return tensor`": "nobody goes back through this loss"}
ROUND = "return -(-nbytes // 512) * 512"
KEY = "kept[storage.data_ptr()] = storage"
BEFORE = "[*parameters, *model.buffers(), *inputs]"
GRADIENTS = "gradients = sum(blocks(one.nbytes) for one in trainable)"


# --- right, and written differently


@right("a walk through the graph's saved tensors")
def walked():
    import math

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


@right("a class that collects; copies instead of tensors")
def collector():
    import copy

    class Collector:
        def __init__(self, *known):
            self.sizes = dict.fromkeys((tensor.untyped_storage().data_ptr() for tensor in known), 0)
            self.alive = []

        def __call__(self, tensor):
            self.alive.append(tensor.detach())
            self.sizes.setdefault(tensor.untyped_storage().data_ptr(), (tensor.untyped_storage().nbytes() + 511) // 512)
            return tensor.clone()

    def account(model, inputs, loss, state):
        own = copy.deepcopy(list(model.state_dict().keys()))
        assert own
        collector = Collector(*model.parameters(), *model.buffers(), *inputs)
        with saved_tensors_hooks(collector, lambda tensor: tensor):
            collector(loss())
        counts = {"parameters": 0, "gradients": 0, "optimizer state": 0}
        for one in model.parameters():
            count = (one.numel() * one.element_size() + 511) // 512 * 512
            counts["parameters"] += count
            if one.requires_grad:
                counts["gradients"] += count
                counts["optimizer state"] += count * state
        return counts | {"activations": 512 * sum(collector.sizes.values())}

    return (account,)


@right("storages kept by address, taken away afterwards; a model on meta counts nothing")
def afterwards():
    def account(model, inputs, loss, state):
        storages, sizes = [], {}

        def pack(tensor):
            storages.append(tensor.untyped_storage())
            return tensor

        hooks = saved_tensors_hooks(pack, lambda tensor: tensor)
        hooks.__enter__()
        try:
            end = loss()
        finally:
            hooks.__exit__()
        for one in (*storages, end.untyped_storage()):
            sizes[one.data_ptr()] = one.nbytes() + -one.nbytes() % 512
        for one in (*model.parameters(), *model.buffers(), *inputs):
            sizes.pop(one.data_ptr(), None)
        figures = dict.fromkeys(("parameters", "gradients", "optimizer state"), 0)
        for one in set(model.parameters()):
            nbytes = one.nbytes + -one.nbytes % 512
            figures["parameters"] += nbytes
            figures["gradients"] += nbytes if one.requires_grad else 0
        figures["optimizer state"] = sum(figures["gradients"] for _ in range(state))
        figures["activations"] = sum(sizes.values())
        return figures

    return (account,)


# --- wrong

wrong("no blocks", "no block is rounded up", {ROUND: "return nbytes"})
wrong("blocks of 256", "ledger counts", {ROUND: "return -(-nbytes // 256) * 256"})
wrong("one block too many", "ledger counts", {ROUND: "return (nbytes // 512 + 1) * 512"})
wrong("each tensor that is kept", "more than backward keeps", {KEY: "kept[len(kept)] = storage"})
wrong("the half of a tensor that is kept, and not its memory", "ledger counts", {
    KEY: "kept[storage.data_ptr()] = tensor", "storage.nbytes()": "storage.nbytes"
})  # fmt: skip
wrong("back through it, and all gradients gone", "a gradient was cleared", {
    "    pack(result)\n": "    pack(result)\n    result.backward()\n    model.zero_grad()\n"
})  # fmt: skip
wrong("parameters too", "more than backward keeps", {BEFORE: "[*model.buffers(), *inputs]"})
wrong("inputs too", "the batch was there before", {BEFORE: "[*parameters, *model.buffers()]"})
wrong("buffers too", "buffers were there before", {BEFORE: "[*parameters, *inputs]"})
wrong("the loss forgotten", "the loss itself is missing", {"    pack(result)\n": ""})
wrong(
    "the loss twice",
    "counts twice",
    {"    pack(result)\n": "", "for storage in kept.values())": "for storage in kept.values()) + 512"},
)
wrong(
    "frozen gradients",
    "the frozen layer counts",
    {GRADIENTS: "gradients = sum(blocks(one.nbytes) for one in parameters)"},
)
wrong(
    "frozen parameters missing",
    "the frozen layer is missing",
    {'"parameters": sum(blocks(one.nbytes) for one in parameters)': '"parameters": gradients'},
)
wrong(
    "tied twice",
    "a tied weight counts twice",
    {"list(model.parameters())": "[p for m in model.modules() for p in m._parameters.values() if p is not None]"},
)
wrong(
    "buffers are parameters",
    "buffers are no parameters",
    {"one in parameters),": "one in [*parameters, *model.buffers()]),"},
)
wrong("always Adam", "optimizer state", {"state * gradients": "2 * gradients"})
wrong("four bytes a number", "the parameters", {"one.nbytes": "4 * one.numel()"})
wrong(
    "the state in one tensor",
    "bytes of the optimizer state are not what the GPU's ledger counts",
    {"state * gradients": "blocks(state * sum(one.nbytes for one in trainable))"},
)
wrong(
    "all parameters in one tensor",
    "ledger counts",
    {"sum(blocks(one.nbytes) for one in parameters)": "blocks(sum(one.nbytes for one in parameters))"},
)
wrong(
    "a backward pass", "no backward pass is needed", {"    pack(result)\n": "    pack(result)\n    result.backward()\n"}
)
wrong(
    "the hook of whole modules",
    "which was left behind",
    {
        "with saved_tensors_hooks(pack, lambda tensor: tensor):": "for module in model.modules():\n        module.register_forward_hook(lambda m, i, out: (pack(out), None)[1])\n    if True:"
    },
)
wrong("megabytes", "plain int", {'"gradients": gradients': '"gradients": gradients / 1e6'})
wrong("a tuple", "returns a dict", {"    return {": "    return 1, {"})
wrong(
    "frozen for good",
    "requires_grad",
    {"    kept = {}\n": "    kept = {}\n    for one in trainable[:1]:\n        one.requires_grad_(False)\n"},
)
wrong(
    "without a gradient",
    "backward keeps",
    {"        result = loss()\n": "        with torch.no_grad():\n            result = loss()\n"},
)


@wrong("keeps what it has seen", "keeps more tensors")
def keeps():
    seen = []

    def account(model, inputs, loss, state):
        kept = {}

        def pack(tensor):
            seen.append(tensor)
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            pack(loss())
        for one in [*model.parameters(), *model.buffers(), *inputs]:
            kept.pop(one.untyped_storage().data_ptr(), None)
        weights = [(blocks(one.nbytes), one.requires_grad) for one in model.parameters()]
        gradients = sum(size for size, learns in weights if learns)
        return {"parameters": sum(size for size, _ in weights), "gradients": gradients,
                "optimizer state": state * gradients,
                "activations": sum(blocks(one.nbytes()) for one in kept.values())}  # fmt: skip

    return (account,)


right(
    "numpy's integers",
    {"return -(-nbytes // 512) * 512": "import numpy\n\n    return numpy.int64(-(-nbytes // 512) * 512)"},
)
wrong("what was said of this model before is said again", "when it is asked again", {
    "def account(model, inputs, loss, state):\n": "SAID = {}\n\n\ndef account(model, inputs, loss, state):\n",
    "    return {\n": "    return SAID.setdefault(id(model), {\n",
    "kept.values()),\n    }": "kept.values()),\n    })",
})  # fmt: skip
wrong("all parameters have the type of the first", "the parameters", {
    "sum(blocks(one.nbytes) for one in parameters)": "sum(blocks(parameters[0].itemsize * one.numel()) for one in parameters)"
})  # fmt: skip
wrong("each tensor once, and not each storage", "more than backward keeps", {KEY: "kept[id(tensor)] = storage"})
wrong("floats only", "less than backward keeps", {
    "not in before:": "not in before and tensor.is_floating_point():"
})  # fmt: skip
wrong("in eval, and then all in train", "is in another mode (train or eval) than before", {
    "        result = loss()\n": "        model.eval()\n        result = loss()\n        model.train()\n"
})  # fmt: skip
