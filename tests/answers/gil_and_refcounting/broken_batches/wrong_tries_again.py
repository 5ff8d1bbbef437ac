REJECTED_WITH = "each batch is trained on once"


def train_through_errors(train_step, batches):
    errors = []
    for number, (x, y) in enumerate(batches):
        try:
            train_step(x, y)
        except ValueError as error:
            errors.append((number, str(error)))
            try:
                train_step(x, y)
            except ValueError:
                pass
    return errors
