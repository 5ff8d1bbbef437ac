REJECTED_WITH = "any other error must come out"


def train_through_errors(train_step, batches):
    errors = []
    for number, (x, y) in enumerate(batches):
        try:
            train_step(x, y)
        except Exception as error:
            errors.append((number, str(error)))
    return errors
