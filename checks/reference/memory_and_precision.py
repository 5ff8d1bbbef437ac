from contextlib import suppress


import torch


from torch import nn


from torch.autograd.graph import saved_tensors_hooks


from torch.nn.functional import cross_entropy, dropout


import simgpu


from checks.labs import memory_and_precision as check


def blocks(nbytes):
    return -(-nbytes // 512) * 512


def account(model, inputs, loss, state):
    ### BEGIN SOLUTION
    parameters = list(model.parameters())
    trainable = [one for one in parameters if one.requires_grad]
    before = {one.untyped_storage().data_ptr() for one in [*parameters, *model.buffers(), *inputs]}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in before:
            kept[storage.data_ptr()] = storage
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = loss()
    pack(result)
    gradients = sum(blocks(one.nbytes) for one in trainable)
    return {
        "parameters": sum(blocks(one.nbytes) for one in parameters),
        "gradients": gradients,
        "optimizer state": state * gradients,
        "activations": sum(blocks(storage.nbytes()) for storage in kept.values()),
    }


class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *tensors):
        ctx.function, ctx.random = function, torch.simgpu.get_rng_state()
        ctx.save_for_backward(*tensors)
        return function(*tensors)

    @staticmethod
    def backward(ctx, gradient):
        tensors = [one.detach().requires_grad_(one.requires_grad) for one in ctx.saved_tensors]
        now = torch.simgpu.get_rng_state()
        torch.simgpu.set_rng_state(ctx.random)
        with torch.enable_grad():
            result = ctx.function(*tensors)
        torch.simgpu.set_rng_state(now)
        torch.autograd.backward(result, gradient)
        return None, *(one.grad for one in tensors)


def checkpointed(function, *tensors):
    ### BEGIN SOLUTION
    return Again.apply(function, *tensors)


class LossScaler:
    def __init__(self, scale, growth, backoff, interval):
        ### BEGIN SOLUTION
        self.now, self.growth, self.backoff, self.interval = scale, growth, backoff, interval
        self.good, self.unscaled, self.finite = 0, False, True
        ### END SOLUTION

    def scale(self, loss):
        ### BEGIN SOLUTION
        return loss * self.now
        ### END SOLUTION

    def unscale(self, optimizer):
        ### BEGIN SOLUTION
        self.unscaled, self.finite = True, True
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad /= self.now
                    self.finite &= bool(parameter.grad.isfinite().all())
        ### END SOLUTION

    def step(self, optimizer):
        ### BEGIN SOLUTION
        if not self.unscaled:
            self.unscale(optimizer)
        if self.finite:
            optimizer.step()
        return self.finite
        ### END SOLUTION

    def update(self):
        ### BEGIN SOLUTION
        self.unscaled = False
        self.good = self.good + 1 if self.finite else 0
        if not self.finite:
            self.now *= self.backoff
        elif self.good == self.interval:
            self.now *= self.growth
            self.good = 0
        ### END SOLUTION

    def state_dict(self):
        ### BEGIN SOLUTION
        return {name: vars(self)[name] for name in ("now", "growth", "backoff", "interval", "good")}
        ### END SOLUTION

    def load_state_dict(self, state):
        ### BEGIN SOLUTION
        vars(self).update(state)


def utilization(model, sequences, length, again, gpus, seconds, peak):
    ### BEGIN SOLUTION
    width, inner, tokens = model["width"], model["inner"], sequences * length
    narrow = width * model["kv_heads"] // model["heads"]
    matrices = 3 if model["gated"] else 2
    block = 2 * width * (width + narrow) + matrices * width * inner
    scores = 2 * length * width
    forward = 2 * tokens * (block + scores)  # of one block
    head = 2 * tokens * width * model["vocabulary"]
    needed = 3 * (model["layers"] * forward + head)
    done = needed + again * forward
    full = gpus * peak * seconds
    return needed / full, done / full
