"""Exercise 3 of the lab on sharded checkpoints: no error of the background is lost."""

import concurrent.futures
import copy
import os

from known_answers import right, wrong

KEEP = "            self.error = error\n"
CLEAN = "            if os.path.exists(temporary):\n                os.unlink(temporary)\n"
WAIT = "        self.wait()\n        self.thread = threading"
TAKE, RAISE = (
    "        error, self.error = self.error, None\n",
    "        if error is not None:\n            raise error\n",
)

right("errors in a list", {
    "self.error = write, None, None": "self.errors = write, None, []", KEEP: "            self.errors.append(error)\n",
    TAKE + RAISE: "        if self.errors:\n            raise self.errors.pop()\n",
})  # fmt: skip
right("whatever happens, it is removed in the end", {
    CLEAN: "        finally:\n" + CLEAN, "path.exists(temporary)": "path.lexists(temporary)"
})  # fmt: skip


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
            half = os.path.join(os.path.dirname(path), "." + os.path.basename(path))
            try:
                self._write(state, half)
                os.rename(half, path)
            finally:
                if os.path.lexists(half):
                    os.remove(half)

    return (AsyncSaver,)


wrong("the error dies with the thread", "write raises OSError, and the next wait() says nothing", {KEEP: ""})
wrong("only exceptions", "CheckpointException, and the next wait() says nothing", {"BaseException": "Exception"})
for name in ("KeyboardInterrupt", "SystemExit"):
    wrong(f"{name} is swallowed", f"write raises {name}, and the next", {
        KEEP: f"            self.error = None if isinstance(error, {name}) else error\n"
    })  # fmt: skip
wrong("another error", "raises something else", {RAISE: RAISE.replace("raise error", "raise OSError(str(error))")})
wrong("again and again", "comes out a second time", {TAKE: "        error = self.error\n"})
wrong("only wait() tells", "and the next save() says nothing", {
    WAIT: "        if self.thread is not None:\n            self.thread.join()\n        self.thread = threading"
})  # fmt: skip
wrong("told after the next has begun", "it is to begin nothing", {
    WAIT: WAIT.replace("self.wait()", "if self.thread is not None:\n            self.thread.join()\n" + TAKE.rstrip()),
    "        self.thread.start()\n": "        self.thread.start()\n" + RAISE,
})  # fmt: skip
wrong("the half-written file stays", "the half-written file stays", {CLEAN: ""})
wrong(
    "the older file goes with it",
    "the former file is gone or changed",
    {CLEAN: CLEAN + "            os.unlink(path)\n"},
)
wrong("half a file is better than none", "it is no checkpoint", {
    "os.unlink(temporary)": "os.unlink(temporary) if os.path.exists(path) else os.rename(temporary, path)"
})  # fmt: skip
wrong("no more saves after an error", "saving does not work any more", {
    TAKE: TAKE + "        self.broken = getattr(self, 'broken', False) or error is not None\n",
    WAIT: "        if getattr(self, 'broken', False):\n            return\n" + WAIT,
})  # fmt: skip
wrong("no file to remove", "before there is a file, and the next save() says nothing", {
    KEEP + CLEAN: "            os.unlink(temporary)\n" + KEEP
})  # fmt: skip
wrong("an error of the rename is lost", "an error of the rename comes out too", {
    CLEAN: CLEAN + "            if os.path.isdir(path):\n                self.error = None\n"
})  # fmt: skip
