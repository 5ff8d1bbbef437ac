import os
import shutil

import torch

REJECTED_WITH = "a copy can be killed half done"


def save(state, path):
    temporary = f"{path}.tmp"
    try:
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        shutil.copyfile(temporary, path)
        os.unlink(temporary)
    except BaseException:
        os.unlink(temporary)
        raise
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
