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

right("copied by hand", {CLASS: BY_HAND, COPY: "copied(state)"})


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
wrong("save joins", "save returns only when the disk has written", {START: START + "        self.thread.join()\n"})
wrong("to the final name", "write gets the final name", {'temporary = f"{path}.tmp"': "temporary = path", RENAME: ""})
wrong("the second does not wait", "two writes run at once", {WAIT: "        self.thread = threading"})
