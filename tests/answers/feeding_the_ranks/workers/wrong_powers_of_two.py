REJECTED_WITH = "5 workers are never tried"


def choose_workers(measure, cores, ranks, worker_bytes, free_bytes):
    most = min(cores // ranks, free_bytes // (ranks * worker_bytes))
    seconds = {}
    for workers in (0, 1, 2, 4, 8, 16):
        if workers <= most:
            measured = measure(workers, 24 * max(workers, 1))[4 * workers :]
            seconds[workers] = sum(measured) / len(measured)
    return min(workers for workers in seconds if seconds[workers] <= 1.05 * min(seconds.values()))
