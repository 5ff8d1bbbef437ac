"""Exercise 7 of the lab on feeding the ranks: how many workers? What is not here is in the official solution."""

import itertools
import statistics

from known_answers import right, wrong

MOST = "    most = min(cores // ranks, free_bytes // (ranks * worker_bytes))\n"
CHOSEN = "    return min(workers for workers in range(most + 1) if seconds[workers] <= 1.05 * min(seconds))"


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


wrong("measures for ever", "measuring takes longer than it saves", {"24 * rounds": "400 * rounds"})
wrong("memory ignored", "do not fit into memory", {MOST: "    most = cores // ranks\n"})
wrong("the memory of one rank", "do not fit into memory", {"(ranks * worker_bytes)": "worker_bytes"})
wrong("returns a float", "returns a whole number of workers", {CHOSEN: CHOSEN.replace("return ", "return 1.0 * ")})
wrong("more than there are cores", "the cores are shared", {MOST: "    return cores + 1\n"})
