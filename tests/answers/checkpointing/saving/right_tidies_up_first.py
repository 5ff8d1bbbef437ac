import os
import tempfile
from pathlib import Path

import torch


def save(state, path):
    """A new temporary name each time; what earlier kills have left is removed first."""
    path = Path(path)
    for leftover in path.parent.glob(f"{path.name}.*.part"):
        leftover.unlink()
    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".part", dir=path.parent)
    os.close(descriptor)
    try:
        torch.save(state, name)
        with open(name, "rb+") as file:
            os.fsync(file)
    except Exception:
        Path(name).unlink()
        raise
    Path(name).replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)
