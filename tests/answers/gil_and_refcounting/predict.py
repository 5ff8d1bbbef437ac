"""Exercise 1 of the lab on the GIL and reference counts: eight predictions. What is not here is in the official solution."""

import collections

import numpy
from known_answers import right, wrong

right("by keyword", {'"cycle": 1,\n        "error_kept": 2,': "**dict(cycle=1, error_kept=2),"})


@right("most add one")
def most_add_one():
    def predictions():
        others = {"nothing_returned": 0, "three_times_in_a_list": numpy.int64(3), "error_kept": 2, "detached": 0}
        one = ("saved_for_backward", "two_closures", "cycle", "one_list_held_twice")
        return dict.fromkeys(one, 1) | others

    return (predictions,)


@right("pairs")
def pairs():
    def predictions():
        found = collections.OrderedDict()
        for name in ["cycle", "two_closures", "saved_for_backward", "one_list_held_twice"]:
            found[name] = 1
        found.update(nothing_returned=0, detached=0, error_kept=len("ab"), three_times_in_a_list=3)
        return found

    return (predictions,)


wrong("local names stay", "its names are gone", {'"nothing_returned": 0': '"nothing_returned": 3'})
wrong("objects, not places", "each place in a list", {'_in_a_list": 3': '_in_a_list": 1'})
wrong("a cycle is freed", "7 of 8 are right. cycle adds 1, not 0", {'"cycle": 1': '"cycle": 0'})
wrong("the counts themselves", "every number is one too large", {
    ": 3": ": 4", ": 2": ": 3", ": 1": ": 2", ": 0": ": 1"
})  # fmt: skip
wrong("one is missing", "cycle has no prediction", {'        "cycle": 1,\n': ""})
