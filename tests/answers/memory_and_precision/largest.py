"""Exercise 4 of the lab on memory and precision: the largest batch, and no step that runs out of memory."""

# ruff: noqa: F401 (modules that changed answers use)
import math

import torch
from known_answers import right, wrong


def largest_batch(peak, capacity):
    batch, held = 1, peak(1)
    while (safe := batch * capacity // held) > batch:  # a batch of k times as many rows needs at most k times as much
        batch = safe
        held = peak(batch)
    row = held - peak(batch - 1)  # here the peak is a straight line
    return batch + (capacity - held) // row


SAFE = "batch * capacity // held"
LINE = "    row = held - peak(batch - 1)  # here the peak is a straight line\n"
RETURN = "    return batch + (capacity - held) // row"


EQUAL = {
    "8: 1 → 2 (2)": "the first guess is off by one row, of the hundreds in which the peak hardly changes",
}


# --- right, and written differently


@right("doubling while it must fit, then the line")
def doubling():
    def largest_batch(peak, capacity):
        n, held = 1, peak(1)
        while 2 * held <= capacity:
            n, held = 2 * n, peak(2 * n)
        before = peak(n - 1)
        guess = n + (capacity - held) // (held - before)
        assert peak(guess) <= capacity
        return guess

    return (largest_batch,)


@right("with fractions, and every step looked up")
def fractions():
    from fractions import Fraction

    def largest_batch(peak, capacity):
        known = {}

        def measured(n):
            if n not in known:
                known[n] = peak(n)
            return known[n]

        best = 1
        while True:
            more = math.floor(Fraction(best) * Fraction(capacity, measured(best)))
            if more <= best:
                break
            best = more
        slope = measured(best) - measured(best - 1)
        while measured(best) + slope <= capacity:
            best += 1
        return best

    return (largest_batch,)


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
        return rows

    return (largest_batch,)


# --- wrong

wrong("bisection", "ran out of memory", {SAFE: "2 * batch"})
wrong("the first guess is twice what fits for certain", "ran out of memory, as number 2 of the steps", {
    "batch, held = 1, peak(1)": "batch, held = 2, peak(1)"
})  # fmt: skip
wrong(
    "a straight line through one and two",
    "ran out of memory",
    {
        "    while": "    row = peak(2) - held\n    batch = 1 + (capacity - held) // row\n    held = peak(batch)\n    while"
    },
)
wrong(
    "a straight line through small batches",
    "ran out of memory",
    {
        "    while": "    row = (peak(9) - held) // 8\n    batch = 1 + (capacity - held) // row\n    held = peak(batch)\n    while"
    },
)
wrong(
    "one more, to be sure",
    "ran out of memory",
    {
        RETURN: "    best = batch + (capacity - held) // row\n    try:\n        peak(best + 1)\n    except torch.OutOfMemoryError:\n        return best"
    },
)
wrong(
    "never tried",
    "larger",
    {
        LINE: "",
        RETURN: "    return capacity // peak(1)",
        "while (safe := batch * capacity // held) > batch:": "while False:",
    },
)
wrong("without the last rows", "larger", {RETURN: "    return batch", LINE: ""})
wrong("one row too many", "smaller", {"(capacity - held) // row": "-(held - capacity) // row + 1"})
wrong(
    "a tenth to be safe",
    "larger",
    {"    batch, held = 1, peak(1)": "    capacity = capacity * 9 // 10\n    batch, held = 1, peak(1)"},
)
wrong("a float", "plain int", {RETURN: "    return batch + (capacity - held) / row"})
wrong("nothing", "plain int", {RETURN: "    batch + (capacity - held) // row"})
wrong(
    "rows one after the other",
    "too many steps",
    {"batch * capacity // held) > batch": "min(batch + 50, batch * capacity // held)) > batch"},
)
wrong("a power of two", "larger", {RETURN: "    return 2 ** int(math.log2(batch))"})
wrong("a batch that is no number of rows", "raised ValueError", {"batch = safe\n": "batch = safe + 0.0\n"})
wrong(
    "a row's bytes from a batch and a tenth of it",
    "smaller",
    {LINE: "    row = (held - peak(max(1, batch // 10))) // max(1, batch - batch // 10) or 1\n"},
)
wrong("the row of the mean", "larger", {LINE: "    row = held // batch\n"})
wrong("asks the ledger", "write it yourself", {"    batch, held": "    torch.simgpu.mem_get_info()\n    batch, held"})
wrong("more memory than there is", "ran out of memory", {SAFE: "batch * int(1.05 * capacity) // held"})


@right("numpy's integers, in and out")
def numpys():
    import numpy

    def largest_batch(peak, capacity):
        batch, held = numpy.int64(1), peak(numpy.int64(1))
        while (safe := batch * capacity // held) > batch:
            batch, held = safe, peak(safe)
        return batch + (capacity - held) // (held - peak(batch - 1))

    return (largest_batch,)


@wrong("looks into the closure of the function that it got", "looks into the check")
def into_the_closure():
    def largest_batch(peak, capacity):
        calls = next(one.cell_contents for one in peak.__closure__)
        return calls.gi_frame.f_locals["function"](1)

    return (largest_batch,)
