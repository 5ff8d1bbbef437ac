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
wrong("no wait", "before anybody has waited", {"        work.wait()\n": ""})
wrong("nothing is freed", "gathered and not freed after their use", {"        unit.free()\n": ""})
wrong("freed too early", "is freed before it has computed", {
    "        x = unit(x)\n        unit.free()\n": "        unit.free()\n        x = unit(x)\n"
})  # fmt: skip
