REJECTED_WITH = "do not fit into memory"


def choose_workers(measure, cores, ranks, worker_bytes, free_bytes):
    most = cores // ranks
    seconds = []
    for workers in range(most + 1):
        rounds = max(workers, 1)
        measured = measure(workers, 10 * rounds)[4 * rounds :]
        seconds.append(sum(measured) / len(measured))
    return min(workers for workers in range(most + 1) if seconds[workers] <= 1.05 * min(seconds))
