import os
import shutil
import tempfile

import torch

REJECTED_WITH = "the temporary file is in another folder"


def save(state, path):
    temporary = os.path.join(tempfile.gettempdir(), f"checkpoint-{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        shutil.move(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
