"""Exercise 2 of the lab on the GIL and reference counts: a tool that counts references."""

# ruff: noqa: F401 (modules that changed answers use)
import ctypes
import gc
import random
import sys

import numpy
import torch
from known_answers import right, wrong


def added_references(situation):
    a = torch.zeros(3)
    before = sys.getrefcount(a)
    kept = situation(a)
    after = sys.getrefcount(a)
    del kept
    return after - before


NEW = "    a = torch.zeros(3)\n"
BEFORE = "    before = sys.getrefcount(a)\n"
CALL = "    kept = situation(a)\n"
AFTER = "    after = sys.getrefcount(a)\n"
EQUAL = {
    "19: without `del kept`": "it goes when the function returns",
    "20: 3 → 4": "a tensor of any length",
    "20: 3 → 2": "a tensor of any length",
}


# --- right, and written differently

right(
    "in one line",
    {
        BEFORE
        + CALL
        + AFTER
        + "    del kept\n": "    return -sys.getrefcount(a) + (situation(a), sys.getrefcount(a))[1]\n"
    },
)
right("the collector is off meanwhile", {BEFORE: "    gc.disable()\n" + BEFORE, "    del kept\n": "    gc.enable()\n"})
right("the collector before", {BEFORE: "    gc.collect()\n" + BEFORE})
right("a keyword", {CALL: CALL.replace("situation(a)", "situation(*[a])")})


right("numpy's whole number", {"after - before": "numpy.int64(after - before)"})


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


@right("two steps, one of which does nothing")
def two_steps():
    def added_references(situation):
        counts, kept = [], []
        a = torch.ones(2)
        for step in (lambda x: None, situation):
            kept.append(step(a))
            counts.append(sys.getrefcount(a))
        return counts[1] - counts[0]

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


# --- wrong

wrong("the result is dropped", "must stay alive until you have counted", {CALL: "    kept = situation(a) is None\n"})
wrong("no count before", "count before and after", {"after - before": "after"})
wrong("another tensor's count", "every number is off by the same", {
    "after - before": "after - sys.getrefcount(torch.zeros(3))"
})  # fmt: skip
wrong("minus two", "the same tensor, in the same way", {"after - before": "after - before - 2"})
wrong("both after", "every situation seems to add nothing", {BEFORE: "", AFTER: BEFORE + AFTER})
wrong("both before", "every situation seems to add nothing", {AFTER: "", CALL: AFTER + CALL})
wrong("a copy is given", "every situation seems to add nothing", {"situation(a)": "situation(a.clone())"})
wrong("a detached one is given", "seems to add nothing", {"situation(a)": "situation(a.detach())"})
wrong("called before", "runs more than once", {BEFORE: "    situation(a)\n" + BEFORE})
wrong("called twice", "runs more than once", {CALL: "    kept = situation(a), situation(a)\n"})
wrong("the mean of three calls", "runs more than once", {
    "after - before": "sorted([after - before, added(situation), added(situation)])[1]",
    "    del kept\n": "\n    def added(s):\n        b = torch.zeros(3)\n        n = sys.getrefcount(b)\n"
    "        k = s(b)\n        return (sys.getrefcount(b) - n, k)[0]\n\n"
})  # fmt: skip
wrong("never called", "never called", {CALL: "    kept = None\n"})
wrong("the collector before the count", "takes away what was to be counted", {AFTER: "    gc.collect()\n" + AFTER})
wrong("a pair", "returns one whole number", {"after - before": "(before, after)"})
wrong("a float", "returns one whole number", {"after - before": "(after - before) / 1"})
wrong("a text", "returns one whole number", {"after - before": 'f"{after - before}"'})
wrong("at most three", "are measured wrong", {"after - before": "min(after - before, 3)"})
wrong("never negative, never odd", "are measured wrong", {"after - before": "(after - before) // 2 * 2"})
wrong("the holders", "each holder once", {"sys.getrefcount(a)": "len(gc.get_referrers(a))"})
wrong("one tensor for all calls", "a tensor of a former call", {
    NEW: "    a = MINE\n", "def added": "MINE = torch.zeros(3)\n\n\ndef added"
})  # fmt: skip
wrong("the situation gets a list", "raised AttributeError", {"situation(a)": "situation([a])"})
wrong("the collector stays off", "leaves Python's settings other", {BEFORE: "    gc.disable()\n" + BEFORE})
wrong("seeds torch", "random numbers other", {NEW: "    torch.manual_seed(0)\n" + NEW})
wrong("the result lives on", "is still there when added_references has returned", {
    "    del kept\n": "    LIST.append(a)\n", "def added": "LIST = []\n\n\ndef added"
})  # fmt: skip
wrong("the last tensor lives on", "is still there when added_references has returned", {
    "    del kept\n": "    LAST[0] = a\n", "def added": "LAST = {}\n\n\ndef added"
})  # fmt: skip
wrong("a cycle of its own", "is still there when added_references has returned", {
    "    del kept\n": "    box = [a]\n    box.append(box)\n"
})  # fmt: skip
wrong("at most twenty", "are measured wrong", {"after - before": "min(after - before, 20)"})
wrong("by the name", "never called", {
    CALL: "    return {'cycle': 1, 'detached': 0}.get(situation.__name__, 1)\n"
})  # fmt: skip
wrong("an exception", "raised AttributeError", {"sys.getrefcount(a)": "sys.refcount(a)"})
