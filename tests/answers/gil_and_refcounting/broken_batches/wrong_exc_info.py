import sys

REJECTED_WITH = "an error stays, and with it its traceback"


def train_through_errors(train_step, batches):
    errors = []
    for number, (x, y) in enumerate(batches):
        try:
            train_step(x, y)
        except ValueError:
            errors.append((number, sys.exc_info()))
    return [(number, str(error)) for number, (_, error, _) in errors]
