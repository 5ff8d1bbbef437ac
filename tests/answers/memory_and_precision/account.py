"""Exercise 1 of the lab on memory and precision: the bytes of a step. What is not here is in the official solution."""

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


wrong("each tensor once, and not each storage", "the bytes of the activations", {KEY: "kept[id(tensor)] = storage"})
wrong("a backward pass", "predicted without a backward pass", {PACK: PACK + "    result.backward()\n"})
wrong("a tuple", "returns a dict", {"    return {\n": "    return 1, {\n"})
wrong("in eval, and then all in train", "changes `model`", {
    "        result = loss()\n": "        model.eval()\n        result = loss()\n        model.train()\n"
})  # fmt: skip
wrong("what was said of this model before is said again", "the optimizer state, with one state more", {
    "def account(model, inputs, loss, state):\n": "SAID = {}\n\n\ndef account(model, inputs, loss, state):\n",
    "    return {\n": "    return SAID.setdefault(id(model), {\n",
    "kept.values()),\n    }": "kept.values()),\n    })",
})  # fmt: skip
