REJECTED_WITH = "an error stays, and with it its traceback"


def failure_of(train_step, x, y):
    failure = None
    try:
        train_step(x, y)
    except ValueError as error:
        failure = error
    return str(failure) if failure else None


def train_through_errors(train_step, batches):
    found = [(number, failure_of(train_step, x, y)) for number, (x, y) in enumerate(batches)]
    return [(number, text) for number, text in found if text]
