"""Exercise 7 of the lab on feeding the ranks: how many workers?"""

import itertools
import statistics

import torch
from known_answers import right, wrong


def choose_workers(measure, cores, ranks, worker_bytes, free_bytes):
    most = min(cores // ranks, free_bytes // (ranks * worker_bytes))
    seconds = []
    for workers in range(most + 1):
        rounds = max(workers, 1)
        measured = measure(workers, 24 * rounds)[4 * rounds :]
        seconds.append(sum(measured) / len(measured))
    return min(workers for workers in range(most + 1) if seconds[workers] <= 1.05 * min(seconds))


MOST = "    most = min(cores // ranks, free_bytes // (ranks * worker_bytes))\n"
MEASURED = "        measured = measure(workers, 24 * rounds)[4 * rounds :]\n"
MEAN = "seconds.append(sum(measured) / len(measured))"
CHOSEN = "    return min(workers for workers in range(most + 1) if seconds[workers] <= 1.05 * min(seconds))"
ENOUGH = "as many batches are enough"
EQUAL = {
    "11: arguments of `min(cores // ranks, free_bytes // (ranks * worker_bytes))` swapped": "min has no order",
    "14: arguments of `max(workers, 1)` swapped": "max has no order",
    "17: other comparison in `seconds[workers] <= 1.05 * min(seconds)`": "no time is exactly 5 % longer",
} | dict.fromkeys(("14: 1 → 2", "15: 24 → 25", "15: 24 → 23", "15: 4 → 5", "15: 4 → 3"), ENOUGH)


# --- right, and written differently


@right("batches per second over a long window; the largest number first")
def rates():
    def choose_workers(measure, cores, ranks, worker_bytes, free_bytes):
        candidates = [n for n in range(cores + 1) if n * ranks <= cores and n * ranks * worker_bytes <= free_bytes]
        rates = {}
        for n in reversed(candidates):
            seconds = measure(n, 200)
            late = seconds[40:]
            rates[n] = len(late) / sum(late)
        fastest = max(rates.values())
        good_enough = [n for n in candidates if rates[n] * 1.05 >= fastest]
        return good_enough[0]

    return (choose_workers,)


@right("whole rounds from a list, and the best is looked for from below")
def whole_rounds():
    def choose_workers(measure, cores, ranks, worker_bytes, free_bytes):
        def of_a_batch(workers):
            steady = max(1, workers) * 5
            return sum(itertools.islice(measure(workers, 6 * steady), steady, None)) / (5 * steady)

        fits = min(cores // ranks, free_bytes // (worker_bytes * ranks))
        measured = [of_a_batch(workers) for workers in range(fits + 1)]
        limit = min(measured) * 1.05
        return next(workers for workers, seconds in enumerate(measured) if seconds <= limit)

    return (choose_workers,)


@right("named arguments, one worker more as long as it fits")
def while_it_fits():
    def choose_workers(measure, cores, ranks, worker_bytes, free_bytes):
        means, workers = {}, 0
        while workers * ranks <= cores and workers * ranks * worker_bytes <= free_bytes:
            batches = 30 * max(workers, 1)
            means[workers] = statistics.fmean(measure(workers=workers, batches=batches)[batches // 5 :])
            workers += 1
        best = min(means.values())
        for workers, mean in sorted(means.items()):
            if mean / best <= 1.05:
                return workers
        return None

    return (choose_workers,)


@right("tensors, and two measurements of each")
def two_measurements():
    def choose_workers(measure, cores, ranks, worker_bytes, free_bytes):
        most = int(min(cores / ranks, free_bytes / ranks / worker_bytes))
        means = torch.zeros(most + 1, dtype=torch.float64)
        for workers in reversed(range(most + 1)):
            for _ in range(2):
                seconds = torch.tensor(measure(workers, 14 * max(workers, 1)), dtype=torch.float64)
                means[workers] += seconds[4 * max(workers, 1) :].mean() / 2
        return int((means <= 1.05 * means.min()).nonzero()[0])

    return (choose_workers,)


# --- wrong

wrong("all cores", "nothing is measured: no rule of thumb fits all machines", {MOST: "    return cores\n" + MOST})
wrong("as many as fit", "nothing is measured: no rule of thumb fits all machines", {MOST: MOST + "    return most\n"})
wrong("four a GPU", "nothing is measured: no rule of thumb fits all machines", {MOST: "    return 4\n" + MOST})
wrong(
    "the fastest",
    "fewer workers are within 5 % of it: the rest is noise",
    {CHOSEN: "    return seconds.index(min(seconds))"},
)
wrong(
    "the first batch",
    "the first one waits for the workers to start",
    {MEASURED: "        measured = measure(workers, 1)\n"},
)
wrong(
    "the second batch",
    "the first one waits for the workers to start",
    {MEASURED: "        measured = measure(workers, 2)[1:]\n"},
)
wrong("half a batch", "is no number of batches", {"24 * rounds": "48 * rounds / 2"})
wrong("8 percent", "this is not the smallest number within 5 %", {"1.05": "1.08"})
wrong("2 percent", "fewer workers are within 5 % of the fastest", {"1.05": "1.02"})
wrong("half as fast will do", "this is not the smallest number within 5 %", {"1.05": "2"})
wrong("measures for ever", "measuring takes longer than it saves", {"24 * rounds": "400 * rounds"})
wrong(
    "the median",
    "the median is fooled: batches come in bursts",
    {MEAN: "seconds.append(sorted(measured)[len(measured) // 2])"},
)
wrong("memory ignored", "do not fit into memory", {MOST: "    most = cores // ranks\n", "24 * rounds": "10 * rounds"})
wrong(
    "the memory of one rank",
    "do not fit into memory",
    {"(ranks * worker_bytes)": "worker_bytes", "24 * rounds": "10 * rounds"},
)
wrong("other ranks ignored", "the cores are shared by all ranks of the node", {"cores // ranks": "cores"})
wrong("never without workers", "0 workers are never tried", {
    "seconds = []": "seconds = [9.0]", "range(most + 1):": "range(1, most + 1):"
})  # fmt: skip
wrong(
    "one more to be safe",
    "fewer workers are within 5 % of the fastest",
    {"return min(workers": "return min(most, 1 + min(workers", "min(seconds))": "min(seconds)))"},
)
wrong("down from the fastest", "fewer workers are within 5 %", {
    CHOSEN: "    best = seconds.index(min(seconds))\n    while best and seconds[best - 1] <= 1.05 * min(seconds):\n        best -= 1\n    return best"
})  # fmt: skip
wrong("powers of two", "5 workers are never tried", {
    "        rounds = max": "        if workers not in (0, 1, 2, 4, 8):\n            seconds.append(9.0)\n            continue\n        rounds = max"
})  # fmt: skip
wrong(
    "ready ones counted",
    "others lie ready, up to two from each worker",
    {MEASURED: "        measured = measure(workers, 25)[1:]\n"},
)
wrong(
    "the start is counted",
    "the start of the workers is counted",
    {MEASURED: "        measured = measure(workers, 30)\n"},
)
wrong("returns seconds", "returns a whole number of workers", {CHOSEN: "    return min(seconds)"})
wrong("returns a float", "returns a whole number of workers", {"return min(": "return 1.0 * min("})
wrong("the shortest time", "this is not the smallest number within 5 %", {MEAN: "seconds.append(min(measured))"})


@wrong("stops when one more does not help", "8 workers are never tried")
def stops_early():
    def choose_workers(measure, cores, ranks, worker_bytes, free_bytes):
        most = min(cores // ranks, free_bytes // (ranks * worker_bytes))

        def seconds(workers):
            measured = measure(workers, 24 * max(workers, 1))[4 * workers :]
            return sum(measured) / len(measured)

        best = seconds(0)
        for workers in range(1, most + 1):
            now = seconds(workers)
            if now > 0.95 * best:
                return workers - 1
            best = now
        return most

    return (choose_workers,)


wrong(
    "the machine is looked at",
    "looks into the check",
    {MOST: MOST + "    measure.__closure__[0].cell_contents.gi_frame\n"},
)
wrong(
    "the course's own machines",
    "uses checks.feeding_the_ranks.simulated_loader",
    {MOST: MOST + "    import checks.feeding_the_ranks.simulated_loader\n"},
)
wrong("seeded", "leaves torch's random numbers other", {MOST: MOST + "    torch.manual_seed(0)\n"})
wrong("asks the system", "starts a process", {MOST: MOST + "    __import__('os').system('true')\n"})
wrong("memory is rounded", "memory", {
    "free_bytes // (ranks * worker_bytes)": "round(free_bytes / (ranks * worker_bytes))"
})  # fmt: skip
