REJECTED_WITH = "the rows are not shared out evenly"


def scatter_batch(batch, devices):
    parts = batch.split(len(devices))
    return [part.to(devices[i % len(devices)]) for i, part in enumerate(parts)]
