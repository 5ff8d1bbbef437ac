def choose_workers(measure, cores, ranks, worker_bytes, free_bytes):
    """Batches per second over a long window; the largest number first."""
    candidates = [n for n in range(cores + 1) if n * ranks <= cores and n * ranks * worker_bytes <= free_bytes]
    rates = {}
    for n in reversed(candidates):
        seconds = measure(n, 200)
        late = seconds[40:]
        rates[n] = len(late) / sum(late)
    fastest = max(rates.values())
    good_enough = [n for n in candidates if rates[n] * 1.05 >= fastest]
    return good_enough[0]
