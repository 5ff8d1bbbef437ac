import os

import torch

REJECTED_WITH = "the bytes are not synced"


def save(state, path):
    temporary = f"{path}.tmp"
    try:
        with open(temporary, "wb") as file:
            torch.save(state, file)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
