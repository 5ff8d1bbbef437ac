"""Exercise 1 of the lab on measuring: a timer. What is not here is in the official solution."""

import statistics

from known_answers import right, wrong


@right("the difference of long and short rounds")
def differences():
    def step_time(step, wait, clock, everyone):
        def seconds(count):
            wait()
            begin = clock()
            for _ in range(count):
                step()
            wait()
            return clock() - begin

        seconds(5)
        found = [(seconds(12) - seconds(4)) / 8 for _ in range(5)]
        return max(everyone(statistics.median(found)))

    return (step_time,)


@right("each rank tells all its rounds, and the median is of the slowest")
def slowest():
    def step_time(step, wait, clock, everyone):
        for _ in range(10):
            step()
        wait()
        slowest = []
        for _ in range(9):
            begin = clock()
            [step() for _ in range(10)]
            wait()
            slowest.append(max(everyone(clock() - begin)))
        return sorted(slowest)[len(slowest) // 2] / 10

    return (step_time,)


wrong("one step", "not what the exercise says", {
    "    for _ in range(5)": "    begin = clock()\n    step()\n    return clock() - begin\n    for _ in range(5)"
})  # fmt: skip
wrong("too many steps", "more than 100 times", {"range(9)": "range(99)"})
wrong("a list comes back", "not a number", {"max(everyone(median(rounds)))": "everyone(median(rounds))"})
wrong("the fastest rank", "not what the exercise says", {"max(everyone": "min(everyone"})
