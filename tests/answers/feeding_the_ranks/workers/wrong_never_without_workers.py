REJECTED_WITH = "0 workers are never tried"


def choose_workers(measure, cores, ranks, worker_bytes, free_bytes):
    most = min(cores // ranks, free_bytes // (ranks * worker_bytes))
    seconds = {}
    for workers in range(1, most + 1):
        measured = measure(workers, 24 * workers)[4 * workers :]
        seconds[workers] = sum(measured) / len(measured)
    return min(workers for workers in seconds if seconds[workers] <= 1.05 * min(seconds.values()))
