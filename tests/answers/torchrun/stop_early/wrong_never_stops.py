REJECTED_WITH = "It never stops early"


def train_until(most, good, train_epoch, validate):
    for _ in range(most):
        train_epoch()
        validate()
    return most
