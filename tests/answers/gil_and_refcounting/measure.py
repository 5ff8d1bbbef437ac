"""Exercise 2 of the lab on the GIL and reference counts: a tool that counts. What is not here is in the official solution."""

import ctypes
import sys

import torch
from known_answers import right, wrong

BEFORE, CALL, AFTER = (
    "    before = sys.getrefcount(a)\n", "    kept = situation(a)\n", "    after = sys.getrefcount(a)\n"
)  # fmt: skip
right("in one line", {
    BEFORE + CALL + AFTER + "    del kept\n": "    return -sys.getrefcount(a) + (situation(a), sys.getrefcount(a))[1]\n"
})  # fmt: skip


@right("a helper, and a list that keeps")
def with_a_helper():
    def count_of(thing):
        return sys.getrefcount(thing)

    def added_references(situation):
        a = torch.full((3,), 0.5)
        first = count_of(a)
        kept = [situation(a)]
        return count_of(a) - first + 0 * len(kept)

    return (added_references,)


@right("the count is read from the object")
def read():
    def added_references(situation):
        a = torch.empty(5, dtype=torch.float64)
        count = ctypes.c_uint32.from_address(id(a))
        before = count.value
        kept = situation(a)
        return (count.value - before, kept)[0]

    return (added_references,)


wrong("called twice", "runs more than once", {CALL: "    kept = situation(a), situation(a)\n"})
wrong("never called", "never called", {CALL: "    kept = None\n"})
wrong("the situation gets a list", "gets the tensor itself", {"situation(a)": "situation([a])"})
wrong("a pair", "returns one whole number", {"after - before": "(before, after)"})
wrong("one tensor for all calls", "is still there when added_references has returned", {
    "    a = torch.zeros(3)\n": "    a = MINE\n", "def added": "MINE = torch.zeros(3)\n\n\ndef added"
})  # fmt: skip
