REJECTED_WITH = "counted from 0"


def train_through_errors(train_step, batches):
    errors = []
    for number, (x, y) in enumerate(batches, start=1):
        try:
            train_step(x, y)
        except ValueError as error:
            errors.append((number, str(error)))
    return errors
