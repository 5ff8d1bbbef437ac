"""Exercise 2 of the lab on sharded checkpoints: a save in the background."""

# ruff: noqa: F401 (modules that changed answers use)
import copy
import os
import queue
import threading

import torch
from known_answers import right, wrong

BY_HAND = """def copied(value):
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {name: copied(one) for name, one in value.items()}
    return [copied(one) for one in value] if isinstance(value, list) else value


class AsyncSaver:"""
CLASS, COPY = "class AsyncSaver:", "copy.deepcopy(state)"
START, JOIN = "        self.thread.start()\n", "            self.thread.join()\n"
RENAME = "            os.replace(temporary, path)\n"
WAIT = "        self.wait()\n        self.thread = threading"
GONE = "            if os.path.exists(path):\n                os.unlink(path)\n"
CALL = "            self.write(state, temporary)\n"

right("copied by hand", {CLASS: BY_HAND, COPY: "copied(state)"})
right("a daemon, another name, rename", {
    "args=(copy": "daemon=True, args=(copy", 'f"{path}.tmp"': 'os.path.join(os.path.dirname(path), "new")',
    "os.replace": "os.rename",
})  # fmt: skip
right("nothing is done about errors", {"except BaseException as error": "except ZeroDivisionError as error"})


@right("one thread for ever, with a queue, and what came of it in another")
def a_worker():
    class AsyncSaver:
        def __init__(self, write):
            self.todo, self.done, self.pending = queue.Queue(), queue.Queue(), 0
            threading.Thread(target=self.run, args=(write,), daemon=True).start()

        def run(self, write):
            while True:
                job = self.todo.get()
                half = job[1] + f".{os.getpid()}.part"
                write(job[0], half)
                os.replace(half, job[1])
                job = None
                self.done.put(None)

        def wait(self):
            if self.pending:
                self.pending -= 1
                self.done.get()

        def save(self, state, path):
            self.wait()
            self.todo.put((copy.deepcopy(state), path))
            self.pending += 1

    return (AsyncSaver,)


@right("the copy is made in the thread, and save waits for the copy")
def staged_in_the_thread():
    class AsyncSaver:
        def __init__(self, write):
            self.write, self.last = write, None

        def save(self, state, path):
            self.wait()
            staged = threading.Event()

            def both():
                mine = copy.deepcopy(state)
                staged.set()
                self.write(mine, path + "~")
                os.replace(path + "~", path)

            self.last = threading.Thread(target=both)
            self.last.start()
            staged.wait()

        def wait(self):
            if self.last:
                self.last.join()

    return (AsyncSaver,)


wrong("no copy", "the file holds state['step'] as the training has changed it", {COPY: "state"})
wrong("the dictionary alone is copied", "the file holds state['model']['w'] as the training", {COPY: "dict(state)"})
wrong("lists are not copied", "state['rates'][1]['now'] as the training has changed it", {
    CLASS: BY_HAND.replace("[copied(one) for one in value] if isinstance(value, list) else ", ""), COPY: "copied(state)",
})  # fmt: skip
wrong("copied in the thread", "the file holds state['step'] as the training has changed it", {
    COPY: "state", "self.write(state, temporary)": "self.write(copy.deepcopy(state), temporary)"
})  # fmt: skip
wrong("no thread at all", "write runs in the thread of the training", {START: "        self.thread.run()\n"})
wrong("save joins", "save returns only when the disk has written", {START: START + "        self.thread.join()\n"})
wrong(
    "the thread dies",
    "the thread dies of NameError",
    {CALL: CALL + "            count(state)\n", "BaseException": "OSError"},
)
wrong("to the final name", "write gets the final name", {'temporary = f"{path}.tmp"': "temporary = path", RENAME: ""})
wrong("the old one is removed first", "for a moment the former file is gone", {CALL: GONE + CALL})
wrong("removed just before the rename", "for a moment the former file is gone", {RENAME: GONE + RENAME})
wrong("a copy under the final name", "the final name gets a copy", {
    RENAME: "            import shutil\n            shutil.copyfile(temporary, path)\n            os.unlink(temporary)\n"
})  # fmt: skip
wrong("another folder", "a name in another folder", {
    'temporary = f"{path}.tmp"': "import tempfile\n        temporary = tempfile.mktemp()"
})  # fmt: skip
wrong("the second does not wait", "two writes run at once", {WAIT: "        self.thread = threading"})
wrong("skipped when busy", "the second one is missing", {
    WAIT: "        if self.thread is not None and self.thread.is_alive():\n            return\n" + WAIT
})  # fmt: skip
wrong("copied before it waits", "the second one's copy is there as well", {
    WAIT: f"        mine = {COPY}\n" + WAIT, f"args=({COPY}": "args=(mine",
})  # fmt: skip
wrong("queued", "the second save returns before the first file has its name", {
    WAIT: "        before = self.thread\n        self.thread = threading", "args=(copy": "args=(before, copy",
    "_work(self, state, path):\n": "_work(self, before, state, path):\n        before and before.join()\n",
})  # fmt: skip
wrong("wait does not wait", "wait() returns while write still runs", {JOIN: ""})
wrong("wait gives up", "wait() returns while write still runs (for 0.7 s)", {"thread.join()": "thread.join(0.5)"})
wrong("the copy is kept", "the copy is still held", {COPY: "self.mine", WAIT: f"        self.mine = {COPY}\n" + WAIT})
wrong("state is changed", "your function changes `state`", {START: START + "        state['step'] = 0\n"})
