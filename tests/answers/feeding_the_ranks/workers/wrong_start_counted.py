REJECTED_WITH = "the start of the workers is counted"


def choose_workers(measure, cores, ranks, worker_bytes, free_bytes):
    most = min(cores // ranks, free_bytes // (ranks * worker_bytes))
    seconds = []
    for workers in range(most + 1):
        measured = measure(workers, 30)
        seconds.append(sum(measured) / len(measured))
    return min(workers for workers in range(most + 1) if seconds[workers] <= 1.05 * min(seconds))
