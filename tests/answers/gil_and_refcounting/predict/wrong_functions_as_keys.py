REJECTED_WITH = "use the functions' names as keys"


def another_name(a):
    b = a
    return b


def predictions():
    return {another_name.__qualname__ + "(a)": 1}
