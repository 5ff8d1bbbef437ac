"""Exercise 1 of the lab on the GIL and reference counts: eight predictions."""

# ruff: noqa: F401 (modules that changed answers use)
import gc
import os
import sys

import numpy
import torch
from known_answers import right, wrong


def predictions():
    return {
        "nothing_returned": 0,
        "three_times_in_a_list": 3,
        "one_list_held_twice": 1,
        "two_closures": 1,
        "cycle": 1,
        "error_kept": 2,
        "detached": 0,
        "saved_for_backward": 1,
    }


# --- right, and written differently

right("by keyword", {'"cycle": 1,\n        "error_kept": 2,': "**dict(cycle=1, error_kept=2),"})


right("numpy's whole numbers", {": 3": ": numpy.int64(3)"})


@right("most add one")
def most_add_one():
    def predictions():
        others = {"nothing_returned": 0, "three_times_in_a_list": 3, "error_kept": 2, "detached": 0}
        one = ("saved_for_backward", "two_closures", "cycle", "one_list_held_twice")
        return dict.fromkeys(one, 1) | others

    return (predictions,)


@right("pairs")
def pairs():
    import collections

    def predictions():
        found = collections.OrderedDict()
        for name in ["cycle", "two_closures", "saved_for_backward", "one_list_held_twice"]:
            found[name] = 1
        found.update(nothing_returned=0, detached=0, error_kept=len("ab"), three_times_in_a_list=3)
        return found

    return (predictions,)


# --- wrong

wrong("local names stay", "its names are gone", {'"nothing_returned": 0': '"nothing_returned": 3'})
wrong("objects, not places", "each place in a list", {'_in_a_list": 3': '_in_a_list": 1'})
wrong("a list held twice", "the list holds the tensor once", {'held_twice": 1': 'held_twice": 2'})
wrong("each closure counts", "both functions share one cell", {'two_closures": 1': 'two_closures": 2'})
wrong("a cycle is freed", "only the cycle collector frees it", {'"cycle": 1': '"cycle": 0'})
wrong("one frame only", "the frames of two functions", {'error_kept": 2': 'error_kept": 1'})
wrong("an error holds nothing", "the frames of two functions", {'error_kept": 2': 'error_kept": 0'})
wrong("detached holds", "shares the memory", {'"detached": 0': '"detached": 1'})
wrong("saved twice", "all of C++ counts as one", {'_backward": 1': '_backward": 2'})
wrong("the counts themselves", "every number is one too large", {
    ": 3": ": 4", ": 2": ": 3", ": 1": ": 2", ": 0": ": 1"
})  # fmt: skip
wrong("a list", "returns a dict", {"return {": "return list({", "    }\n": "    }.values())\n"})
wrong("nothing", "returns a dict", {"return {": "{"})
wrong("one is missing", "cycle has no prediction", {'        "cycle": 1,\n': ""})
wrong("one too many", "there is no function 'fail'", {'"cycle": 1,': '"cycle": 1, "fail": 1,'})
wrong("the functions as keys", "use the functions' names as keys", {'"cycle"': "predictions"})
wrong("a float", "needs a whole number", {'"cycle": 1': '"cycle": 1.0'})
wrong("truth values", "needs a whole number", {'"cycle": 1': '"cycle": True'})
wrong("texts", "needs a whole number", {'"error_kept": 2': '"error_kept": "2"'})
wrong("the collector stays off", "leaves Python's settings other", {"    return {": "    gc.disable()\n    return {"})
wrong("torch prints otherwise", "leaves torch's defaults other", {
    "    return {": "    torch.set_printoptions(precision=2)\n    return {"
})  # fmt: skip
wrong("the files that others make", "leaves the settings of the process other", {
    "    return {": "    os.umask(0)\n    return {"
})  # fmt: skip
wrong("another way to count", "leaves", {
    "    return {": "    sys.setrecursionlimit(999)\n    return {"
})  # fmt: skip
