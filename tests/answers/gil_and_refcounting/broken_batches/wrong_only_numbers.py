REJECTED_WITH = "a list of pairs"


def train_through_errors(train_step, batches):
    errors = []
    for number, (x, y) in enumerate(batches):
        try:
            train_step(x, y)
        except ValueError:
            errors.append(number)
    return errors
