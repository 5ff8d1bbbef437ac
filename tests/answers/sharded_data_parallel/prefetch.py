"""Exercise 5 of the lab on sharded data parallelism: prefetch. What is not here is in the official solution."""

import collections

from known_answers import right, wrong

NEXT = "        if number + 1 < len(units):\n            work = units[number + 1].gather()\n"


@right("an iterator that is one ahead")
def one_ahead():
    def run(units, x):
        ahead = iter(units)
        waiting = collections.deque([next(ahead)])
        works = {id(waiting[0]): waiting[0].gather()}
        while waiting:
            unit = waiting.popleft()
            works.pop(id(unit)).wait()
            for following in ahead:
                works[id(following)] = following.gather()
                waiting.append(following)
                break
            x = unit(x)
            unit.free()
        return x

    return (run,)


@right("from the last to the first, by recursion")
def recursion():
    def go(units, work, x):
        if not units:
            return x
        unit, *others = units
        work.wait()
        following = others[0].gather() if others else None
        x = unit(x)
        unit.free()
        return go(others, following, x)

    def run(units, x):
        return go(units, units[0].gather(), x)

    return (run,)


@right("pairs")
def pairs():
    def run(units, x):
        works = [units[0].gather()]
        for unit, following in zip(units, [*units[1:], None], strict=True):
            works.pop().wait()
            if following is not None:
                works.append(following.gather())
            x = unit(x)
            unit.free()
        return x

    return (run,)


@right("two at the start, and one more after each that is freed")
def two_at_the_start():
    def run(units, x):
        works = [unit.gather() for unit in units[:2]]
        for number, unit in enumerate(units):
            works[number].wait()
            x = unit(x)
            unit.free()
            works += [unit.gather() for unit in units[number + 2 : number + 3]]
        return x

    return (run,)


wrong(
    "begun behind the computing",
    "nothing overlaps",
    {NEXT: "", "        unit.free()\n": "        unit.free()\n" + NEXT},
)
wrong("the next one is waited for at once", "nothing overlaps", {NEXT: NEXT + "            work.wait()\n"})
wrong("freed at the end", "all units are gathered at once", {
    "        unit.free()\n": "", "    return x\n": "    for unit in units:\n        unit.free()\n    return x\n"
})  # fmt: skip
wrong("no wait", "before anybody has waited", {"        work.wait()\n": ""})
wrong("waits for the wrong one", "before anybody has waited", {
    "        work.wait()\n" + NEXT: NEXT + "        work.wait()\n"
})  # fmt: skip
wrong("nothing is freed", "gathered and not freed after their use", {"        unit.free()\n": ""})
wrong("freed too early", "is freed before it has computed", {
    "        x = unit(x)\n        unit.free()\n": "        unit.free()\n        x = unit(x)\n"
})  # fmt: skip
wrong(
    "gathered twice",
    "is gathered twice",
    {"        x = unit(x)\n": "        unit.gather().wait()\n        x = unit(x)\n"},
)
wrong("the last one is left out", "not every unit has computed", {"enumerate(units)": "enumerate(units[:-1] or units)"})
wrong("never gathered", "its parameters are not gathered", {
    "    work = units[0].gather()\n": "", "        work.wait()\n": "", NEXT: ""
})  # fmt: skip
wrong("a unit too many", "IndexError", {"if number + 1 < len(units)": "if True"})
wrong("freed again at the end", "it was freed before", {
    "    return x\n": "    for unit in units:\n        unit.free()\n    return x\n"
})  # fmt: skip
wrong("computes twice", "computes more than once", {"        x = unit(x)\n": "        unit(x)\n        x = unit(x)\n"})
