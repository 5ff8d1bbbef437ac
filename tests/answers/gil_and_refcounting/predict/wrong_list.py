REJECTED_WITH = "returns a dict"


def predictions():
    return [1, 0, 3, 1, 2, 0, 0, 1, 1, 1, 0, 2, 0, 1, 0, 1]
