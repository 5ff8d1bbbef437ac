REJECTED_WITH = "fewer workers are within 5 % of the fastest"


def choose_workers(measure, cores, ranks, worker_bytes, free_bytes):
    most = min(cores // ranks, free_bytes // (ranks * worker_bytes))
    seconds = []
    for workers in range(most + 1):
        rounds = max(workers, 1)
        measured = measure(workers, 24 * rounds)[4 * rounds :]
        seconds.append(sum(measured) / len(measured))
    return min(most, 1 + min(workers for workers in range(most + 1) if seconds[workers] <= 1.05 * min(seconds)))
