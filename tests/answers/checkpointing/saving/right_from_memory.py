import io
from os import O_CREAT, O_RDONLY, O_TRUNC, O_WRONLY, close, fsync, open, remove, rename, write
from os import path as names

import torch


def save(state, path):
    """All bytes are made in memory first, and written with the system's own calls."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    folder, name = names.split(path)
    hidden = names.join(folder, f".{name}.half")
    file = open(hidden, O_WRONLY | O_CREAT | O_TRUNC, 0o644)
    try:
        left = buffer.getvalue()
        while left:
            left = left[write(file, left) :]
        fsync(file)
    except OSError:
        close(file)
        remove(hidden)
        raise
    close(file)
    rename(hidden, path)
    directory = open(folder or ".", O_RDONLY)
    fsync(directory)
    close(directory)
