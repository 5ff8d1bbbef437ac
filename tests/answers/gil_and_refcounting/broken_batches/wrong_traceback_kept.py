REJECTED_WITH = "an error stays, and with it its traceback"


def train_through_errors(train_step, batches):
    errors, tracebacks = [], []
    for number, (x, y) in enumerate(batches):
        try:
            train_step(x, y)
        except ValueError as error:
            errors.append((number, str(error)))
            tracebacks.append(error.__traceback__)
    return errors
