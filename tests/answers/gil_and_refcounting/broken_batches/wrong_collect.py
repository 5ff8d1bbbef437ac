import gc

REJECTED_WITH = "gc.collect() does not help"


def train_through_errors(train_step, batches):
    errors = []
    for number, (x, y) in enumerate(batches):
        try:
            train_step(x, y)
        except ValueError as error:
            errors.append((number, error))
            gc.collect()
    return [(number, str(error)) for number, error in errors]
