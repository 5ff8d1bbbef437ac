"""Exercise 1 of the lab on checkpoints: a save that survives. What is not here is in the official solution."""

import contextlib
import io
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import torch
from known_answers import right, wrong

NAME = '    temporary = f"{path}.tmp"\n'
WRITE = "            torch.save(state, file)\n"
FLUSH = "            file.flush()\n"
SYNC = "            os.fsync(file.fileno())\n"
RENAME = "        os.replace(temporary, path)\n"
TIDY = "        if os.path.exists(temporary):  # not if opening it has failed\n            os.unlink(temporary)\n        raise\n"
FOLDER = '    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)\n    os.fsync(folder)\n    os.close(folder)'


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


@right("O_SYNC, and everything relative to the folder's descriptor")
def relative_to_the_folder():
    def save(state, path):
        folder, name = os.path.split(path)
        directory = os.open(folder or os.curdir, os.O_RDONLY | os.O_DIRECTORY)
        half = name + ".new"

        def opener(name, flags):
            return os.open(name, flags | os.O_SYNC, 0o600, dir_fd=directory)

        try:
            try:
                with open(half, "wb", opener=opener) as file:
                    torch.save(state, file)
            except BaseException:
                os.unlink(half, dir_fd=directory)
                raise
            os.rename(half, name, src_dir_fd=directory, dst_dir_fd=directory)
            os.fsync(directory)
        finally:
            os.close(directory)

    return (save,)


@right("the system is told to write everything, and a context that tidies up")
def everything_is_written():
    @contextlib.contextmanager
    def gone_if_it_fails(path):
        try:
            yield
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
            raise

    def save(state, path):
        new = os.path.join(os.path.dirname(os.path.abspath(path)), f"~{os.path.basename(path)}")
        with gone_if_it_fails(new):
            torch.save(state, new)
            os.sync()
            os.replace(src=new, dst=path)
        os.sync()

    return (save,)


@right("a folder of its own inside the folder, fdatasync, mv")
def folder_inside():
    def save(state, path):
        folder = os.path.dirname(path) or "."
        inside = os.path.join(folder, f".saving-{os.path.basename(path)}")
        shutil.rmtree(inside, ignore_errors=True)
        os.mkdir(inside)
        try:
            new = os.path.join(inside, "state")
            with open(new, "w+b") as file:
                torch.save(state, file)
                file.flush()
                os.fdatasync(file.fileno())
            subprocess.run(["mv", "--", new, path], check=True)
        finally:
            shutil.rmtree(inside)
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    return (save,)


@right("an object that is a context; a thread writes")
def atomic_file():
    class AtomicFile:
        def __init__(self, path):
            self.path, self.half = Path(path), Path(path).with_name(f".{Path(path).name}~")

        def __enter__(self):
            self.file = self.half.open("wb")
            return self.file

        def __exit__(self, kind, error, trace):
            with contextlib.ExitStack() as undo:
                undo.callback(self.half.unlink)
                with self.file:
                    self.file.flush()
                    os.fsync(self.file)
                if kind is None:
                    undo.pop_all()
                    shutil.move(self.half, self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)

    def save(state, path):
        errors = []

        def work():
            try:
                with AtomicFile(path) as file:
                    torch.save(state, file)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]

    return (save,)


@right("the command sync")
def command():
    def save(state, path):
        half = path + ".part"
        try:
            torch.save(state, half)
            subprocess.run(["sync", half], check=True)
            os.replace(half, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(half)
            raise
        subprocess.run(["sync", os.path.dirname(path) or "."], check=True)

    return (save,)


right("fsync is a default argument, the old format", {
    "def save(state, path):": "def save(state, path, sync=os.fsync):", "os.fsync(file.fileno())": "sync(file.fileno())",
    "torch.save(state, file)": "torch.save(state, file, _use_new_zipfile_serialization=False)",
})  # fmt: skip  # fmt: skip


@right("fsync is an attribute of a class")
def fsync_of_a_class():
    class Disk:
        sync = staticmethod(os.fsync)

        def flush(self, file, *, sync=os.fsync):
            file.flush()
            sync(file)

    def save(state, path):
        half = f"{path}.half"
        try:
            with open(half, "wb") as file:
                torch.save(state, file)
                Disk().flush(file)
            os.replace(half, path)
        except BaseException:
            os.unlink(half)
            raise
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
        Disk.sync(folder)
        os.close(folder)

    return (save,)


@right("a file without a name, which gets one when it is whole (Linux)")
def without_a_name():
    def save(state, path):
        folder, name = os.path.split(os.path.abspath(path))
        directory = os.open(folder, os.O_RDONLY)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{name}~", dir_fd=directory)
            with os.fdopen(os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o644), "wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file)
                there = {"src_dir_fd": directory, "dst_dir_fd": directory}
                os.link(f"/proc/self/fd/{file.fileno()}", f"{name}~", **there, follow_symlinks=True)
            os.replace(f"{name}~", name, **there)
            os.fsync(directory)
        finally:
            os.close(directory)

    return (save,)


wrong("torch.save", "half a file", {
    "        with open(temporary": "        torch.save(state, path)\n        return\n        with open(temporary"
})  # fmt: skip
wrong("a bare name", "a name without a folder", {'os.path.dirname(path) or "."': "os.path.dirname(path)"})
wrong(
    "copied",
    "copied into the old file",
    {RENAME: "        import shutil\n        shutil.copyfile(temporary, path)\n        os.unlink(temporary)\n"},
)
wrong("copied by cp", "copied into the old file", {
    RENAME: "        import subprocess\n        subprocess.run(['cp', temporary, path], check=True)\n        os.unlink(temporary)\n"
})  # fmt: skip
wrong("the old one is removed first", "the old one went before the new came", {
    RENAME: "        if os.path.exists(path):\n            os.unlink(path)\n        os.rename(temporary, path)\n"
})  # fmt: skip
wrong("the temporary file is elsewhere", "in another folder", {
    NAME: "    temporary = os.path.join(tempfile.gettempdir(), f'checkpoint-{os.getpid()}')\n", RENAME: "        import shutil\n        shutil.move(temporary, path)\n"
})  # fmt: skip
wrong("a new name each time", "half-written files are left", {'f"{path}.tmp"': 'f"{path}.{os.urandom(9).hex()}"'})
wrong("all that begins with the name goes", "files of somebody else", {
    NAME: NAME + "    from pathlib import Path\n    for one in Path(path).parent.glob(f'{os.path.basename(path)}?*'):\n        one.unlink()\n"
})  # fmt: skip
wrong("the temporary file is not emptied", "does not empty it first", {
    'open(temporary, "wb")': "os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT), 'wb')"
})  # fmt: skip
wrong("no fsync", "the bytes are not synced", {FLUSH + SYNC: ""})
wrong("synced after the rename", "comes after the rename", {
    FLUSH + SYNC: "", RENAME: RENAME + '        with open(path, "rb") as file:\n            os.fsync(file.fileno())\n'
})  # fmt: skip
wrong("not flushed", "fsync comes before the last bytes", {
    '"wb") as file': '"wb", buffering=1 << 20) as file',
    WRITE + FLUSH: "            import io\n            buffer = io.BytesIO()\n            torch.save(state, buffer)\n            file.write(buffer.getvalue())\n",
})  # fmt: skip
wrong("the folder is not synced", "folder of the checkpoint is not synced", {FOLDER: ""})
wrong("the folder is synced before the rename", "the folder is synced before the rename", {
    RENAME: FOLDER.replace("    ", "        ") + "\n" + RENAME, "        raise\n" + FOLDER: "        raise\n"
})  # fmt: skip
wrong("the error is swallowed", "returns as if all were well", {"        raise\n": "        return\n"})
wrong("a leftover on a full disk", "the half-written file stays", {TIDY: "        raise\n"})
wrong(
    "an old state on a full disk",
    "the old checkpoint is lost",
    {TIDY: TIDY.replace("        raise", "        os.unlink(path)\n        raise")},
)
wrong("the state is emptied", "changes `state`", {FOLDER: FOLDER + "\n    state.clear()"})
wrong(
    "only the tensors",
    "torch.load",
    {"torch.save(state, file)": "torch.save({'step': state['step'], 'model': state['model']}, file)"},
)
wrong("the folder stays open", "stays open after the save", {"    os.close(folder)": ""})
wrong("the folder stays open, if it fails", "after an error, too", {
    NAME: NAME + FOLDER.split("\n")[0] + "\n", FOLDER: "\n".join(FOLDER.split("\n")[1:])
})  # fmt: skip
