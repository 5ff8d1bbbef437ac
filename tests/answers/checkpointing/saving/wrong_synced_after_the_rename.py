import os

import torch

REJECTED_WITH = "comes after the rename"


def save(state, path):
    temporary = f"{path}.tmp"
    try:
        with open(temporary, "wb") as file:
            torch.save(state, file)
        os.replace(temporary, path)
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    except BaseException:
        os.unlink(temporary)
        raise
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
