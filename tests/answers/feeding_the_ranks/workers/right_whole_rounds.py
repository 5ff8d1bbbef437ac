import itertools


def choose_workers(measure, cores, ranks, worker_bytes, free_bytes):
    """From a list of whole rounds, and the best is looked for from below."""

    def of_a_batch(workers):
        steady = max(1, workers) * 5
        return sum(itertools.islice(measure(workers, 6 * steady), steady, None)) / (5 * steady)

    fits = min(cores // ranks, free_bytes // (worker_bytes * ranks))
    measured = [of_a_batch(workers) for workers in range(fits + 1)]
    limit = min(measured) * 1.05
    return next(workers for workers, seconds in enumerate(measured) if seconds <= limit)
