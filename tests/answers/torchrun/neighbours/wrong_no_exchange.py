REJECTED_WITH = "Nothing was exchanged"


def shift(tensor):
    return tensor.clone()
