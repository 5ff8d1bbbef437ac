"""Exercise 5 of the lab on all-reduces: a parameter server with bounded staleness."""

import threading

import torch
from known_answers import right, wrong


class Server:
    def __init__(self, weights, workers, bound, lr):
        self.weights, self.bound, self.lr = weights, bound, lr
        self.steps = [0] * workers  # pushed by each worker
        self.updates = 0
        self.updates_at_pull = [0] * workers

    def pull(self, worker):
        if self.steps[worker] - min(self.steps) > self.bound:
            return None
        self.updates_at_pull[worker] = self.updates
        return self.weights

    def push(self, worker, gradient):
        staleness = self.updates - self.updates_at_pull[worker]
        self.weights = self.weights - self.lr * gradient  # a new tensor: who holds the old one keeps it
        self.updates += 1
        self.steps[worker] += 1
        return staleness


BEHIND = "it stands behind the return"
EFFECTS = ("torch.manual_seed(0)", "torch.set_grad_enabled(not torch.is_grad_enabled())", "dist.barrier()",
           "torch.set_default_dtype(torch.float64)", "open('left_behind', 'w').close()")  # fmt: skip
EQUAL = {
    "10: 0 → 1": "only differences of steps count",
    "10: 0 → -1": "only differences of steps count",
    "11: 0 → 1": "only differences of it count",
    "11: 0 → -1": "only differences of it count",
    "12: 0 → 1": "nobody pushes before it has pulled",
    "12: 0 → -1": "nobody pushes before it has pulled",
    **{f"{line} with `{effect}`": BEHIND for line in ("14: pull", "20: push") for effect in EFFECTS},
}
AHEAD = "self.steps[worker] - min(self.steps) > self.bound"
UPDATE = "        self.weights = self.weights - self.lr * gradient  # a new tensor: who holds the old one keeps it\n"
COUNT = "        self.updates += 1\n"
STEP = "        self.steps[worker] += 1\n"
GIVE = "        return self.weights\n"


# --- right, and written differently


@right("a waiting room, and how many updates have come since each pull")
def waiting_room():
    class Server:
        def __init__(self, weights, workers, bound, lr):
            self.weights, self.bound, self.lr = weights, bound, lr
            self.done = dict.fromkeys(range(workers), 0)
            self.others = {}

        def slowest(self):
            return min(self.done.values())

        def pull(self, worker):
            may = self.done[worker] <= self.slowest() + self.bound
            if may:
                self.others[worker] = 0
            return self.weights if may else None

        def push(self, worker, gradient):
            self.weights = self.weights - gradient * self.lr
            self.done[worker] += 1
            staleness = self.others.pop(worker)
            for other in self.others:
                self.others[other] += 1
            return staleness

    return (Server,)


@right("in place on its own copy, and copies for the workers; a lock")
def in_place():
    class Server:
        def __init__(self, weights, workers, bound, lr):
            self._weights = weights.clone()
            self._steps = torch.zeros(workers, dtype=torch.int64)
            self._seen = torch.zeros(workers, dtype=torch.int64)
            self._bound, self._lr, self._lock = bound, lr, threading.Lock()

        def pull(self, worker):
            with self._lock:
                if int(self._steps[worker] - self._steps.min()) > self._bound:
                    return
                self._seen[worker] = self._steps.sum()
                return self._weights.clone()

        @torch.no_grad()
        def push(self, worker, gradient):
            with self._lock:
                late = int(self._steps.sum() - self._seen[worker])
                self._weights.sub_(gradient, alpha=self._lr)
                self._steps[worker] += 1
                return late

    return (Server,)


@right("a log of updates, replayed for each pull")
def log():
    class Server:
        def __init__(self, weights, workers, bound, lr):
            self.first, self.bound, self.lr, self.workers = weights.detach().clone(), bound, lr, range(workers)
            self.log, self.since = [], {}

        def steps(self, worker):
            return sum(1 for who, _ in self.log if who == worker)

        def pull(self, worker):
            ahead = self.steps(worker) - min(self.steps(one) for one in self.workers)
            if ahead <= self.bound:
                self.since[worker] = len(self.log)
                return self.first - self.lr * sum(gradient for _, gradient in self.log)
            return None

        def push(self, worker, gradient):
            self.log.append((worker, gradient.clone()))
            return len(self.log) - self.since[worker] - 1

    return (Server,)


# --- wrong: who waits

wrong("nobody waits", "a worker goes on that is more than `bound` steps ahead", {AHEAD: "self.bound < 0"})
wrong("one too wide", "a worker goes on that is more than `bound` steps ahead", {"> self.bound": "> self.bound + 1"})
wrong("one too narrow", "the bound is one too narrow", {"> self.bound": ">= max(self.bound, 1)"})
wrong("synchronous", "that is synchronous training", {"> self.bound": "> 0"})
wrong("nobody goes on", "the slowest worker has to wait too", {"self.steps[worker] - min": "max(self.steps) - min"})
wrong("two workers only", "workers: ", {"min(self.steps)": "min(self.steps[:2])"})
wrong("compares with the mean", "compare the steps that it has pushed with those of the slowest", {
    "min(self.steps) > self.bound": "sum(self.steps) / len(self.steps) > self.bound"
})  # fmt: skip
wrong("counts pulls", "a worker has taken a step when it pushes, not when it pulls", {
    STEP: "", GIVE: STEP + GIVE
})  # fmt: skip
wrong("at most three steps ahead", "ahead", {"> self.bound": "> min(self.bound, 3)"})
wrong(
    "raises to make wait",
    "raised RuntimeError: not yet",
    {"            return None": "            raise RuntimeError('not yet')"},
)
wrong("False in place of None", "pull returns a bool", {"return None": "return False"})


# --- wrong: staleness

wrong("counts its own update", "before its own is applied", {"return staleness": "return staleness + 1"})
wrong("since the last push", "count the updates of the others between this worker's pull and its push", {
    "        self.updates_at_pull[worker] = self.updates\n": "", STEP: STEP + "        self.updates_at_pull[worker] = self.updates\n"
})  # fmt: skip
wrong("in steps", "count the updates of the others", {
    "self.updates - self.updates_at_pull[worker]": "self.steps[worker] - min(self.steps)"
})  # fmt: skip
wrong("none", "push returns None: it returns the staleness, an int", {"        return staleness\n": ""})
wrong("a float", "push returns a float", {"return staleness": "return staleness / 1"})
wrong("a pull that has to wait counts", "the staleness is not right", {
    "        self.updates_at_pull[worker] = self.updates\n": "",
    "    def pull(self, worker):\n": "    def pull(self, worker):\n        self.updates_at_pull[self.steps.index(min(self.steps))] = self.updates\n",
})  # fmt: skip
wrong("at most ten", "the staleness is not right", {"return staleness": "return min(staleness, 3)"})


# --- wrong: the weights

wrong("drops late gradients", "the staleness is not right", {
    UPDATE + COUNT: "        if staleness <= self.bound:\n            self.weights = self.weights - self.lr * gradient\n"
    "            self.updates += 1\n"
})  # fmt: skip
wrong("applies no late ones", "late ones too", {"self.lr * gradient": "self.lr * gradient * (staleness < 2)"})
wrong("mean in place of the sum", "late ones too", {"self.lr * gradient": "self.lr / len(self.steps) * gradient"})
wrong("one learning rate", "late ones too", {"self.lr * gradient": "0.125 * gradient"})
wrong("in float32", "late ones too", {"self.lr * gradient": "(self.lr * gradient).float().to(gradient.dtype)"})
wrong("hands out its own", "give each worker a copy", {
    "= weights, bound, lr": "= weights.clone(), bound, lr", "self.weights = self.weights - self.lr": "self.weights -= self.lr"
})  # fmt: skip
wrong("works on what it was given", "they belong to somebody else", {
    GIVE: "        return self.weights.clone()\n", "self.weights = self.weights - self.lr": "self.weights -= self.lr"
})  # fmt: skip
wrong("scales the gradient", "push changes the gradient", {"self.lr * gradient": "gradient.mul_(self.lr)"})
wrong("keeps the worker's own gradients", "late ones too", {
    UPDATE: "        self.late = [*getattr(self, 'late', []), gradient]\n",
    GIVE: "        return self.weights - self.lr * sum(getattr(self, 'late', []))\n",
})  # fmt: skip
wrong("waits for a whole step", "late ones too", {
    UPDATE: "        self.late = [*getattr(self, 'late', []), gradient.clone()]\n        if len(self.late) == len(self.steps):\n"
    "            self.weights, self.late = self.weights - self.lr * sum(self.late), []\n"
})  # fmt: skip
wrong("drops what is very late", "late ones too", {
    UPDATE: "        if staleness < 3 * len(self.steps) + self.bound * len(self.steps):\n    " + UPDATE
})  # fmt: skip
wrong("no staleness above ten", "the staleness is not right", {"return staleness": "return min(staleness, 10)"})
wrong("two servers are one", "The case: 1 rank", {
    "class Server:\n": "class Server:\n    updates_at_pull = {}\n\n", "        self.updates_at_pull = [0] * workers\n": ""
})  # fmt: skip


# --- wrong: what else is changed

wrong("seeds", "leaves torch's random numbers other than before", {UPDATE: "        torch.manual_seed(0)\n" + UPDATE})
wrong(
    "the course's own",
    "the course's own code is no answer",
    {UPDATE: "        import lessons.algorithms.parameter_server\n" + UPDATE},
)
wrong(
    "a thread", "leaves the number of threads other", {UPDATE: "        threading.Timer(30, print).start()\n" + UPDATE}
)
wrong("two servers have one bound", "a worker goes on that is more than", {"self.bound": "Server.bound"})
wrong("two servers have one learning rate", "late ones too", {"self.lr": "Server.lr"})
wrong("the gradient is marked", "push changes the gradient", {UPDATE: "        gradient.applied = True\n" + UPDATE})
wrong("a learning rate in float32", "is all of it computed in float64?", {
    "self.lr * gradient": "torch.tensor(self.lr) * gradient"
})  # fmt: skip
