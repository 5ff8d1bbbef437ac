REJECTED_WITH = "one after the other"


def run_parallel(function, items, workers):
    return [function(item) for item in items]
