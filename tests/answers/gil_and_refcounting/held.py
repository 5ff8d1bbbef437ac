"""Exercise 6 of the lab on the GIL and reference counts: how long a launch holds the GIL. What is not here is in the official
solution."""

import numpy
from known_answers import right, wrong

HELD = "turn / threads if turn > 1.000001 * launch else None"


@right("a line through the points of each number of threads")
def lines():
    def launch_and_held(runs):
        points = {}
        for (threads, launches), time in runs.items():
            points.setdefault(threads, []).append((launches, time))
        slope = {threads: numpy.polyfit(*zip(*some, strict=True), 1)[0] for threads, some in points.items()}
        waiting = [slope[n] / n for n in slope if not numpy.isclose(slope[n], slope[1])]
        return slope[1], (numpy.median(waiting) if waiting else None)

    return (launch_and_held,)


@right("every pair of runs, and the steepest")
def pairs():
    def launch_and_held(runs):
        turns = {}
        for (n, few), short in runs.items():
            for (m, many), long in runs.items():
                if n == m and few < many:
                    turns[n] = (long - short) / (many - few)
        most = max(turns)
        shows = turns[most] - turns[1] > 1e-6
        return turns[1], turns[most] / most if shows else None

    return (launch_and_held,)


@right("the start first, then single runs")
def start_first():
    def launch_and_held(runs):
        alone = sorted(key for key in runs if key[0] == 1)
        launch = (runs[alone[1]] - runs[alone[0]]) / (alone[1][1] - alone[0][1])
        start = runs[alone[0]] - launch * alone[0][1]
        threads, launches = max(runs)
        turn = (runs[threads, launches] - start) / launches
        return numpy.float64(launch), None if abs(turn - launch) < 1e-6 else turn / threads

    return (launch_and_held,)


wrong("one number", "returns a pair", {f"return launch, {HELD}": "return launch"})
wrong("the runs emptied", "changes `runs`", {"    return launch,": "    runs.popitem()\n    return launch,"})
wrong("g of two threads", "g may be anything below", {HELD: "turn / threads"})
wrong("a sum", "the law is a maximum", {HELD: HELD.replace("turn / threads", "(turn - launch) / threads")})
