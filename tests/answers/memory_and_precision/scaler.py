"""Exercise 3 of the lab on memory and precision: a loss scaler. What is not here is in the official solution."""

import math

import torch
from known_answers import right, wrong

DIVIDE, LOSS, SETTINGS = (
    "parameter.grad /= self.now",
    "return loss * self.now",
    "self.interval = scale, growth, backoff, interval",
)
STEP = "        if self.finite:\n            optimizer.step()\n"
NAMES = '{name: vars(self)[name] for name in ("now", "growth", "backoff", "interval", "good")}'
right("a count of what is left; the inverse, in place", {
    DIVIDE: "parameter.grad.mul_(1.0 / self.now)",
    "self.good, self.unscaled, self.finite = 0, False": "self.good, self.unscaled, self.finite = interval, False",
    "self.good + 1 if self.finite else 0": "self.good - 1 if self.finite else self.interval",
    "self.good == self.interval": "self.good == 0",
    "            self.good = 0\n": "            self.good = self.interval\n",
})  # fmt: skip
right("the scale as a tensor, new gradients, sums that tell", {
    SETTINGS: "self.interval = torch.tensor(float(scale)), growth, backoff, interval",
    LOSS: "return self.now.item() * loss",
    DIVIDE: "parameter.grad = parameter.grad / self.now",
    "bool(parameter.grad.isfinite().all())": "float((parameter.grad * 0).sum()) == 0.0",
    f"return {NAMES}": f"return {NAMES} | {{'now': self.now.item()}}",
    "vars(self).update(state)": "vars(self).update(state, now=torch.tensor(state['now']))",
})  # fmt: skip
right("numpy's numbers in the state; all gradients at once", {
    SETTINGS: "self.interval = map(__import__('numpy').float64, (scale, growth, backoff, interval))",
    LOSS: "return torch.mul(loss, float(self.now))",
    "        for group in optimizer.param_groups:\n            for parameter in group[\"params\"]:\n": "",
    "                if parameter.grad is not None:\n                    parameter.grad /= self.now\n":
        "        grads = [one.grad for group in optimizer.param_groups for one in group['params'] if one.grad is not None]\n"
        "        torch._foreach_div_(grads, float(self.now))\n",
    "                    self.finite &= bool(parameter.grad.isfinite().all())":
        "        self.finite = all(bool(one.isfinite().all()) for one in grads)",
})  # fmt: skip


@right("a scaler that remembers gradients; the state of its attributes")
def remembers():
    class LossScaler:
        def __init__(self, scale, growth, backoff, interval):
            self.factor, self.up, self.down, self.every = float(scale), growth, backoff, interval
            self.streak, self.verdict = 0, None

        def scale(self, loss):
            return torch.mul(loss, self.factor)

        @torch.no_grad()
        def unscale(self, optimizer):
            if self.verdict is not None:
                return
            found = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            for one in found:
                one.grad.div_(self.factor)
            self.verdict = all(math.isfinite(one.grad.abs().max().item()) for one in found)

        def step(self, optimizer):
            self.unscale(optimizer)
            if self.verdict:
                optimizer.step()
            return self.verdict

        def update(self):
            if self.verdict:
                self.streak += 1
                if self.streak % self.every == 0:
                    self.factor *= self.up
                    self.streak = 0
            else:
                self.factor, self.streak = self.factor * self.down, 0
            self.verdict = None

        def state_dict(self):
            return dict(vars(self), verdict="")

        def load_state_dict(self, state):
            self.__dict__ = dict(state, verdict=None)

    return (LossScaler,)


wrong("zeros instead of a skip", "how often the optimizer steps", {
    STEP: "        if not self.finite:\n            for group in optimizer.param_groups:\n"
    "                for parameter in group['params']:\n                    parameter.grad = None\n"
    "        optimizer.step()\n"
})  # fmt: skip
wrong("a state of tensors", "a dict of plain numbers", {"vars(self)[name] for": "torch.tensor(vars(self)[name]) for"})
wrong("a tuple as state", "a dict of plain numbers", {NAMES: f"tuple({NAMES}.values())"})
wrong("says nothing", "step returns nothing", {"        return self.finite\n": ""})
wrong(
    "the state is the scaler's own dict",
    "changes in later steps: make a copy",
    {f"return {NAMES}": "return vars(self)"},
)
wrong("the state becomes the scaler's own dict", "changes in later steps: make a copy", {
    "vars(self).update(state)": "self.__dict__ = state\n        self.unscaled, self.finite = False, True"
})  # fmt: skip
wrong("a number", "a tensor from which backward can go back", {LOSS: "return loss.item() * self.now"})
wrong("no graph", "a tensor from which backward can go back", {LOSS: "return loss.detach() * self.now"})
wrong("in place", "scale changes the loss itself", {LOSS: "return loss.mul_(self.now)"})
wrong("fails without a gradient", "raised TypeError", {"if parameter.grad is not None:": "if True:"})
wrong("clips by itself", "the parameters after step 1", {
    STEP: "        if self.finite:\n            for group in optimizer.param_groups:\n"
    "                torch.nn.utils.clip_grad_norm_([one for one in group['params'] if one.grad is not None], 0.1)\n"
    "            optimizer.step()\n"
})  # fmt: skip
wrong("divided in float32", "the gradients that unscale leaves", {
    DIVIDE: "parameter.grad = (parameter.grad.float() / self.now).to(parameter.dtype)"
})  # fmt: skip
