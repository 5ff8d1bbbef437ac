"""Exercise 2 of the lab on sharded checkpoints: a save in the background that is safe."""

# ruff: noqa: F401 (modules that changed answers use)
import concurrent.futures
import copy
import multiprocessing
import os
import queue
import shutil
import tempfile
import threading

import torch
from known_answers import right, wrong


def copied(value):
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {name: copied(one) for name, one in value.items()}
    return [copied(one) for one in value] if isinstance(value, list) else value


class AsyncSaver:
    def __init__(self, write):
        self.write, self.thread, self.error = write, None, None

    def save(self, state, path):
        self.wait()
        self.thread = threading.Thread(target=self.work, args=(copied(state), path))
        self.thread.start()

    def work(self, state, path):
        temporary = f"{path}.tmp"
        try:
            self.write(state, temporary)
            os.replace(temporary, path)
        except BaseException as error:
            self.error = error
            if os.path.exists(temporary):
                os.unlink(temporary)

    def wait(self):
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        error, self.error = self.error, None
        if error is not None:
            raise error


EQUAL = {
    "28: copied with `torch.set_grad_enabled(not torch.is_grad_enabled())`": (
        "the state has an even number of parts: after each save the mode is what it was"
    ),
    "45: work with `torch.set_grad_enabled(not torch.is_grad_enabled())`": "each thread has a mode of its own",
    "56: without `self.thread = None`": "a thread that has ended can be waited for again",
    "52: `os.path.exists(temporary)` → `temporary`": "the error is kept before, see the next",
    "52: always `os.path.exists(temporary)`": "the error is kept before: that another one ends the thread changes nothing",
}
COPY = "args=(copied(state), path)"
RENAME = "            os.replace(temporary, path)\n"
CLEAN = "            if os.path.exists(temporary):\n                os.unlink(temporary)\n"
WAIT = "        self.wait()\n        self.thread = threading"
TAKE = "        error, self.error = self.error, None\n"


# --- right, and written differently


@right("an executor with one thread")
def an_executor():
    class AsyncSaver:
        def __init__(self, write):
            self.pool = concurrent.futures.ThreadPoolExecutor(1)
            self.under_way, self._write = None, write

        def wait(self):
            last, self.under_way = self.under_way, None
            if last is not None:
                last.result()

        def save(self, state, path):
            self.wait()
            self.under_way = self.pool.submit(self.finish, copy.deepcopy(state), path)

        def finish(self, state, path):
            folder, name = os.path.split(path)
            try:
                self._write(state, os.path.join(folder, "." + name))
                os.rename(os.path.join(folder, "." + name), path)
            finally:
                if os.path.lexists(os.path.join(folder, "." + name)):
                    os.remove(os.path.join(folder, "." + name))

    return (AsyncSaver,)


@right("one thread for ever, with a queue, and what came of it in another")
def a_worker():
    class AsyncSaver:
        def __init__(self, write):
            self.todo, self.done, self.pending = queue.Queue(), queue.Queue(), 0
            threading.Thread(target=self.run, args=(write,), daemon=True).start()

        def run(self, write):
            while True:
                job = self.todo.get()
                half, failed = job[1] + f".{os.getpid()}.part", None
                try:
                    write(job[0], half)
                    os.replace(half, job[1])
                except BaseException as error:
                    failed = error
                    try:
                        os.unlink(half)
                    except FileNotFoundError:
                        pass
                job = None
                self.done.put(failed)

        def wait(self):
            if self.pending:
                self.pending -= 1
                failed = self.done.get()
                if failed:
                    raise failed

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
            staged, found = threading.Event(), []

            def both():
                mine = None
                try:
                    mine = copy.deepcopy(state)
                    staged.set()
                    self.write(mine, path + "~")
                    os.replace(path + "~", path)
                except BaseException as error:
                    staged.set()
                    if os.path.isfile(path + "~"):
                        os.unlink(path + "~")
                    found.append(error)

            self.last = threading.Thread(target=both, daemon=True), found
            self.last[0].start()
            staged.wait()

        def wait(self):
            if self.last:
                (thread, found), self.last = self.last, None
                thread.join()
                for error in found:
                    raise error

    return (AsyncSaver,)


# --- wrong

wrong("no copy", "the file holds the state after the training went on", {COPY: "args=(state, path)"})
wrong("the dictionary alone is copied", "the file holds the state after the training went on", {
    COPY: "args=(dict(state), path)"
})  # fmt: skip
wrong("detached, not cloned", "is everything copied, deep inside too", {"value.clone()": "value.detach()"})
wrong("lists are not copied", "does not hold the state of the call", {
    "    return [copied(one) for one in value] if isinstance(value, list) else value\n": "    return value\n"
})  # fmt: skip
wrong("copied in the thread", "the file holds the state after the training went on", {
    COPY: "args=(state, path)", "self.write(state, temporary)": "self.write(copied(state), temporary)"
})  # fmt: skip
wrong("no thread at all", "write runs in the thread of the training", {
    "        self.thread = threading.Thread(target=self.work, args=(copied(state), path))\n        self.thread.start()\n":
    "        self.work(state, path)\n"
})  # fmt: skip
wrong("it waits for the thread", "save returns only when the disk has written", {
    "        self.thread.start()\n": "        self.thread.start()\n        self.thread.join()\n"
})  # fmt: skip
wrong("to the final name", "the file under its final name is half a file", {
    'temporary = f"{path}.tmp"': "temporary = path", RENAME: "", CLEAN: "            pass\n"
})  # fmt: skip
wrong("the old one is removed first", "for a moment there is no file under the name", {
    "            self.write(state, temporary)\n":
    "            if os.path.exists(path):\n                os.unlink(path)\n            self.write(state, temporary)\n"
})  # fmt: skip
wrong("removed just before the rename", "for a moment there is no file under the name", {
    RENAME: "            if os.path.exists(path):\n                os.unlink(path)\n" + RENAME
})  # fmt: skip
wrong("a copy under the final name", "the final name gets a copy", {
    RENAME: "            shutil.copyfile(temporary, path)\n            os.unlink(temporary)\n"
})  # fmt: skip
wrong("the temporary file is elsewhere", "a name in another folder", {
    'temporary = f"{path}.tmp"': "temporary = tempfile.mktemp()", RENAME: "            shutil.move(temporary, path)\n"
})  # fmt: skip
wrong("the error dies with the thread", "the next", {"            self.error = error\n": ""})
wrong("only exceptions are caught", "the next", {"except BaseException as error": "except Exception as error"})
wrong(
    "another error",
    "raises something else",
    {"            raise error\n": '            raise RuntimeError("failed") from error\n'},
)
wrong("the error comes again and again", "comes out a second time", {TAKE: "        error = self.error\n"})
wrong("only wait() tells", "save() says nothing", {
    WAIT: "        if self.thread is not None:\n            self.thread.join()\n        self.thread = threading"
})  # fmt: skip
wrong("told after the next has begun", "begins nothing itself", {
    WAIT: "        if self.thread is not None:\n            self.thread.join()\n        error, self.error = self.error, None\n"
    "        self.thread = threading",
    "        self.thread.start()\n": "        self.thread.start()\n        if error is not None:\n            raise error\n",
})  # fmt: skip
wrong("the second does not wait", "two writes run at once", {WAIT: "        self.thread = threading"})
wrong("skipped when busy", "the second one is missing", {
    WAIT: "        if self.thread is not None and self.thread.is_alive():\n            return\n" + WAIT
})  # fmt: skip
wrong("copied before it waits", "the second one's copy is there as well", {
    WAIT: "        mine = copied(state)\n" + WAIT, COPY: "args=(mine, path)"
})  # fmt: skip
wrong("queued", "the second save returns before the first has its name", {
    "    def save(self, state, path):\n        self.wait()\n        self.thread = threading.Thread(target=self.work, args=(copied(state), path))\n":
    "    def save(self, state, path):\n        before = self.thread\n        self.thread = threading.Thread(target=self.after, args=(before, copied(state), path))\n",
    "    def work(self": "    def after(self, before, state, path):\n        if before is not None:\n            before.join()\n        self.work(state, path)\n\n    def work(self",
})  # fmt: skip
wrong("wait does not wait", "wait() returns while write still runs", {"            self.thread.join()\n": ""})
wrong("the half-written file stays", "its half-written file stays", {CLEAN: ""})
wrong("the older file goes with it", "the older file is gone", {CLEAN: CLEAN + "            os.unlink(path)\n"})
wrong("the copy is kept", "the copy is still held", {
    COPY: "args=(self.keep(state), path)",
    "    def work(self": "    def keep(self, state):\n        self.mine = copied(state)\n        return self.mine\n\n    def work(self",
})  # fmt: skip
wrong("no more saves after an error", "saving does not work any more", {
    TAKE: TAKE + "        self.broken = getattr(self, 'broken', False) or error is not None\n",
    WAIT: "        if getattr(self, 'broken', False):\n            return\n" + WAIT,
})  # fmt: skip
wrong("in float32", "does not hold the state of the call", {"value.clone()": "value.float().clone()"})
wrong("a process", "starts a process", {
    "threading.Thread(target=self.work": 'multiprocessing.get_context("fork").Process(target=self.work'
})  # fmt: skip
wrong("the training's state is frozen", "save changes", {
    "        self.thread.start()\n": "        self.thread.start()\n        state['done']['step'] = 0\n"
})  # fmt: skip

wrong("the error is lost where there is no file to take away", "the next", {
    "            self.error = error\n" + CLEAN: "            os.unlink(temporary)\n            self.error = error\n",
})  # fmt: skip
wrong("the training's tensors are moved", "save changes state[model][w] (memory)", {
    WAIT: "        [one.share_memory_() for one in state['model'].values()]\n" + WAIT
})  # fmt: skip
wrong("a file is left elsewhere", "files are left elsewhere", {WAIT: "        open('note', 'w').close()\n" + WAIT})
wrong(
    "wait turns the gradients off or on",
    "grad mode",
    {TAKE: TAKE + "        torch.set_grad_enabled(not torch.is_grad_enabled())\n"},
)


# --- wrong: two objects at once; errors of one kind

wrong("what is under way belongs to the class", "two objects get in each other's way", {
    "        self.write, self.thread, self.error = write, None, None\n": "        self.write = write\n",
    "class AsyncSaver:\n": "class AsyncSaver:\n    box = {'thread': None, 'error': None}\n\n",
    "self.thread": "AsyncSaver.box['thread']", "self.error": "AsyncSaver.box['error']",
})  # fmt: skip
wrong("KeyboardInterrupt is swallowed", "write failed with KeyboardInterrupt", {
    "            self.error = error\n": "            self.error = None if isinstance(error, KeyboardInterrupt) else error\n"
})  # fmt: skip
wrong("SystemExit is swallowed", "write failed with SystemExit", {
    "            self.error = error\n": "            self.error = None if isinstance(error, SystemExit) else error\n"
})  # fmt: skip
wrong("one name for the temporary file of a folder", "and so does its temporary file", {
    'f"{path}.tmp"': 'os.path.join(os.path.dirname(path), "half")'
})  # fmt: skip
wrong(
    "wait gives up after half a second",
    "wait() returns while write still runs",
    {"self.thread.join()": "self.thread.join(0.5)"},
)
wrong("integers are not copied", "other at state['numbers'][0]['step']", {
    "value.clone()": "value.clone() if value.is_floating_point() else value"
})  # fmt: skip
wrong("keys become text", "does not hold the state of the call", {"{name: copied": "{str(name): copied"})
wrong("half a file gets the name if there was none", "and there was none before", {
    CLEAN: "            if os.path.exists(temporary):\n"
    "                os.unlink(temporary) if os.path.exists(path) else os.rename(temporary, path)\n"
})  # fmt: skip


wrong(
    "an error of the rename is lost",
    "an error of the rename comes out too",
    {
        "            os.replace(temporary, path)\n": "",
        "                os.unlink(temporary)\n": "                os.unlink(temporary)\n"
        "        else:\n            with contextlib.suppress(OSError):\n                os.replace(temporary, path)\n",
        "import concurrent": "import contextlib\nimport concurrent",
    },
)
