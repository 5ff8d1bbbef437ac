REJECTED_WITH = "8 workers are never tried"


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
