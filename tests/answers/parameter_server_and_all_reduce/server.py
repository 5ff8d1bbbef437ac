"""Exercise 5 of the lab on all-reduces: a parameter server with bounded staleness. What is not here is in the official solution."""

import threading

import torch
from known_answers import right, wrong


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


UPDATE = "self.weights = self.weights - self.lr"
GIVE = "        return self.weights\n"
wrong(
    "hands out its own",
    "give each worker a copy",
    {"= weights, bound": "= weights.clone(), bound", UPDATE: "self.weights -= self.lr"},
)
wrong(
    "works on what it was given",
    "copy them",
    {GIVE: "        return self.weights.clone()\n", UPDATE: "self.weights -= self.lr"},
)
