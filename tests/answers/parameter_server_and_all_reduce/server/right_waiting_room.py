"""Keeps, for each worker, its steps and how many updates came since its pull; weights are replaced, never changed."""


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
