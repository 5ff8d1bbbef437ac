"""Exercise 2 of the lab on measuring: MFU and HFU. What is not here is in the official solution."""

import torch
from known_answers import right, wrong


@right("by time instead of rates")
def by_time():
    def utilization(parameters, embedding, layers, width, length, tokens, gpus, peak):
        seconds = 1 / tokens
        room = seconds * gpus * peak
        forward = 2 * (parameters - embedding), 2 * layers * width * length
        return 3 * forward[0] / room, 3 * sum(forward) / room, 4 * sum(forward) / room

    return (utilization,)


@right("a tensor")
def tensor():
    def utilization(parameters, embedding, layers, width, length, tokens, gpus, peak):
        n = parameters - embedding
        work = torch.tensor(
            [6 * n, 6 * n + 6 * layers * width * length, 8 * n + 8 * layers * width * length], dtype=torch.float64
        )
        return work * tokens / gpus / peak

    return (utilization,)


wrong("two numbers", "not three numbers", {"(dense, whole, whole * 4 / 3)": "(dense, whole)"})
wrong("attention without the width", "the three shares", {" * width * length": " * length"})
