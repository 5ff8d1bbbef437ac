"""Exercise 4 of the lab on memory and precision: the largest batch. What is not here is in the official solution."""

import numpy
from known_answers import right, wrong

BEGIN, LOOP = "    batch, held = 1, peak(1)\n", "    while (safe"
SAFE, RETURN = "batch * capacity // held", "    return batch + (capacity - held) // row"
right(
    "numpy's integers, in and out",
    {"batch, held = 1, peak(1)": "import numpy\n    batch, held = numpy.int64(1), peak(1)"},
)
right("doubling while it must fit, then the line, and a look", {
    "(safe := batch * capacity // held) > batch": "2 * held <= capacity",
    "        batch = safe\n": "        batch *= 2\n",
    RETURN: RETURN.replace("return", "best =") + "\n    assert peak(best) <= capacity\n    return best",
})  # fmt: skip
right("with fractions, and row by row at the end", {
    SAFE: "int(__import__('fractions').Fraction(batch) * capacity / held)",
    RETURN: "    while held + row <= capacity:\n        batch, held = batch + 1, held + row\n    return batch",
})  # fmt: skip


@right("near to the limit step by step, with every pair of neighbours")
def neighbours():
    def largest_batch(peak, capacity):
        rows = 1
        while True:
            here = peak(rows)
            if here * (rows + 1) // rows > capacity or capacity // here < 2:
                break
            rows *= capacity // here
        rows = max(rows, rows * capacity // here)
        here, before = peak(rows), peak(rows - 1)
        left = capacity - here
        while left >= here - before:
            rows += 1
            left -= here - before
        return numpy.int64(rows)

    return (largest_batch,)


wrong("bisection", "ran out of memory", {SAFE: "2 * batch"})
wrong("the first guess is twice what fits for certain", "ran out of memory", {"held = 1, peak(1)": "held = 2, peak(1)"})
wrong("a straight line through small batches", "ran out of memory", {
    LOOP: "    row = (peak(9) - held) // 8\n    batch = 1 + (capacity - held) // row\n    held = peak(batch)\n" + LOOP
})  # fmt: skip
wrong("one more, to be sure", "ran out of memory", {
    RETURN: "    best = batch + (capacity - held) // row\n    try:\n        peak(best + 1)\n"
    "    except torch.OutOfMemoryError:\n        return best"
})  # fmt: skip
wrong("more memory than there is", "ran out of memory", {SAFE: "batch * int(1.05 * capacity) // held"})
wrong("a float", "a whole number of rows", {RETURN: RETURN.replace("//", "/")})
wrong("nothing", "a whole number of rows", {"    return batch + (cap": "    batch + (cap"})
wrong("rows one after the other", "at most 30 steps", {f"{SAFE})": f"min(batch + 50, {SAFE}))"})
wrong(
    "a batch that is no number of rows",
    "a batch has 1, 2, 3",
    {"        batch = safe\n": "        batch = safe + 0.0\n"},
)
