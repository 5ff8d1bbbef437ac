import gc

REJECTED_WITH = "the cycle collector sweeps up a leak"


def failure_of(train_step, x, y):
    failure = None
    try:
        train_step(x, y)
    except ValueError as error:
        failure = error
    return str(failure) if failure else None


def train_through_errors(train_step, batches):
    errors = []
    for number, (x, y) in enumerate(batches):
        text = failure_of(train_step, x, y)
        gc.collect()
        if text:
            errors.append((number, text))
    return errors
