REJECTED_WITH = "push changes the gradient"


class Server:
    def __init__(self, weights, workers, bound, lr):
        self.weights, self.bound, self.lr = weights.clone(), bound, lr
        self.steps, self.version, self.updates = [0] * workers, [0] * workers, 0

    def pull(self, worker):
        if self.steps[worker] - min(self.steps) > self.bound:
            return None
        self.version[worker] = self.updates
        return self.weights.clone()

    def push(self, worker, gradient):
        staleness = self.updates - self.version[worker]
        self.weights -= gradient.mul_(self.lr)
        self.updates += 1
        self.steps[worker] += 1
        return staleness
