REJECTED_WITH = "nothing is measured: no rule of thumb fits all machines"


def choose_workers(measure, cores, ranks, worker_bytes, free_bytes):
    return min(cores // ranks, free_bytes // (ranks * worker_bytes))
