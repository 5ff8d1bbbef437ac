import os

import torch

REJECTED_WITH = "the folder is not synced"


def save(state, path):
    temporary = f"{path}.tmp"
    try:
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
