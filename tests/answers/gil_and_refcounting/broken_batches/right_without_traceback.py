def train_through_errors(train_step, batches):
    errors = []
    for number, (x, y) in enumerate(batches):
        try:
            train_step(x, y)
        except ValueError as error:
            errors.append((number, error.with_traceback(None)))
    return [(number, str(error)) for number, error in errors]
