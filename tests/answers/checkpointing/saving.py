"""Exercise 1 of the lab on checkpoints: a save that survives. What is not here is in the official solution."""

import io
import os
import tempfile
from pathlib import Path

import torch
from known_answers import right, wrong

NAMED = "        os.replace(temporary, path)\n"
SYNCED = "            file.flush()\n            os.fsync(file.fileno())\n"


@right("all bytes in memory first, and the system's own calls")
def from_memory():
    from os import O_CREAT, O_RDONLY, O_TRUNC, O_WRONLY, close, fsync, remove, rename, write
    from os import open as open_file

    def save(state, path):
        buffer = io.BytesIO()
        torch.save(state, buffer)
        folder, name = os.path.split(path)
        hidden = os.path.join(folder, f".{name}.half")
        file = open_file(hidden, O_WRONLY | O_CREAT | O_TRUNC, 0o644)
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
        directory = open_file(folder or ".", O_RDONLY)
        fsync(directory)
        close(directory)

    return (save,)


@right("a new name each time, C++ writes; what earlier kills have left is removed first")
def tidies_up_first():
    def save(state, path):
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

    return (save,)


FOLDER = '    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)\n    os.fsync(folder)\n    os.close(folder)'
right("fsync is a default argument, the old format, os.sync for the name", {
    FOLDER: "    os.sync()",
    "def save(state, path):": "def save(state, path, sync=os.fsync):", "os.fsync(file.fileno())": "sync(file.fileno())",
    "torch.save(state, file)": "torch.save(state, file, _use_new_zipfile_serialization=False)",
})  # fmt: skip


wrong("torch.save", "half a file", {"    temporary =": "    return torch.save(state, path)\n    temporary ="})
wrong("the old one is removed first", "the old one went before the new came", {
    NAMED: "        if os.path.exists(path):\n            os.unlink(path)\n" + NAMED
})  # fmt: skip
wrong("synced after the rename", "fsync of the file after the rename", {
    SYNCED: "", NAMED: NAMED + '        with open(path, "rb") as file:\n            os.fsync(file.fileno())\n'
})  # fmt: skip
wrong("the folder is not synced", "fsync the folder of the checkpoint", {"    os.fsync(folder)\n": ""})
wrong("a new name each time", "leave half-written files", {'f"{path}.tmp"': 'f"{path}.{os.urandom(9).hex()}"'})
