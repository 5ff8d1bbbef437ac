REJECTED_WITH = "what str(error) gives"


def train_through_errors(train_step, batches):
    errors = []
    for number, (x, y) in enumerate(batches):
        try:
            train_step(x, y)
        except ValueError as error:
            errors.append((number, repr(error)))
    return errors
