"""Exercise 4 of the lab on memory and precision: MFU and HFU. What is not here is in the official solution."""

import numpy
from known_answers import right, wrong

FORWARD, NEEDED, DONE = "2 * tokens * (block + scores)", "3 * (model", "needed + again * forward"
RETURN = "return needed / full, done / full"
right("fractions", {RETURN: "F = __import__('fractions').Fraction\n    return F(needed) / F(full), F(done) / F(full)"})
right("matrices counted four times in the backward pass", {
    FORWARD: "2 * tokens * block + 4 * tokens * length * width",
    DONE: "model['layers'] * (3 * forward) + 3 * head + forward * again",
})  # fmt: skip


@right("six for each parameter, and twelve for attention, for each token")
def six():
    def utilization(model, sequences, length, again, gpus, seconds, peak):
        width, layers = model["width"], model["layers"]
        per_head = width // model["heads"]
        attention = width * (2 * width + 2 * per_head * model["kv_heads"])
        network = width * model["inner"] * (2 + model["gated"])
        weights = layers * (attention + network) + width * model["vocabulary"]
        needed = 6 * weights + 12 * layers * length * width
        extra = again * (2 * (attention + network) + 4 * length * width)
        rate = sequences * length / (seconds * gpus * peak)
        return numpy.float64(needed * rate), numpy.float64((needed + extra) * rate)

    return (utilization,)


wrong("without attention", "attention multiplies too", {"2 * length * width": "0"})
wrong("6 N D with the table", "looked up", {
    NEEDED: '3 * (2 * tokens * width * model["vocabulary"] + model',
})  # fmt: skip
wrong("everything runs again", "not the last layer", {DONE: "needed * 4 / 3 if again else needed"})
wrong("one number", "two numbers", {RETURN: "return needed / full"})
wrong("tokens a second", "the MFU", {RETURN: "return tokens / seconds, tokens / seconds"})
