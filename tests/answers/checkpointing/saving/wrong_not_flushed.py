import io
import os

import torch

REJECTED_WITH = "fsync comes before the last bytes"


def save(state, path):
    temporary = f"{path}.tmp"
    buffer = io.BytesIO()
    torch.save(state, buffer)
    try:
        with open(temporary, "wb", buffering=1 << 20) as file:
            file.write(buffer.getvalue())
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
