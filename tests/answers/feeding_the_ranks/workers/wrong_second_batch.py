REJECTED_WITH = "the first one waits for the workers to start"


def choose_workers(measure, cores, ranks, worker_bytes, free_bytes):
    most = min(cores // ranks, free_bytes // (ranks * worker_bytes))
    seconds = []
    for workers in range(most + 1):
        measured = measure(workers, 2)[1:]
        seconds.append(sum(measured) / len(measured))
    return min(workers for workers in range(most + 1) if seconds[workers] <= 1.05 * min(seconds))
