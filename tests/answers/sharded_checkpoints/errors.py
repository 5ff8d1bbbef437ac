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
wrong("again and again", "comes out a second time", {TAKE: "        error = self.error\n"})
wrong("only wait() tells", "and the next save() says nothing", {
    WAIT: "        if self.thread is not None:\n            self.thread.join()\n        self.thread = threading"
})  # fmt: skip
wrong("the half-written file stays", "the half-written file stays", {CLEAN: ""})
