"""Exercise 3 of the lab on memory and precision: a loss scaler. What is not here is in the official solution."""

import math

import numpy
import torch
from known_answers import right, wrong

DIVIDE, LOSS = "parameter.grad /= self.now", "return loss * self.now"
STEP = "        if self.finite:\n            optimizer.step()\n"
NAMES = '{name: vars(self)[name] for name in ("now", "growth", "backoff", "interval", "good")}'


@right("powers, and a count of what is left; the inverse")
def inverse():
    class LossScaler:
        def __init__(self, scale, growth, backoff, interval):
            self.state = {"scale": float(scale), "left": interval}
            self.settings = {"growth": growth, "backoff": backoff, "interval": interval}
            self.found = None

        def scale(self, loss):
            return self.state["scale"] * loss

        def _gradients(self, optimizer):
            return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]

        def unscale(self, optimizer):
            self.found = False
            for gradient in self._gradients(optimizer):
                gradient.mul_(1.0 / self.state["scale"])
                if not torch.isfinite(gradient).all().item():
                    self.found = True

        def step(self, optimizer):
            if self.found is None:
                self.unscale(optimizer)
            if self.found:
                return False
            optimizer.step()
            return True

        def update(self):
            skipped, self.found = self.found, None
            if skipped:
                self.state = {
                    "scale": self.state["scale"] * self.settings["backoff"],
                    "left": self.settings["interval"],
                }
                return
            self.state["left"] -= 1
            if self.state["left"] == 0:
                self.state = {"scale": self.state["scale"] * self.settings["growth"], "left": self.settings["interval"]}

        def state_dict(self):
            return self.state | self.settings

        def load_state_dict(self, state):
            self.state = {name: state[name] for name in ("scale", "left")}
            self.settings = {name: state[name] for name in ("growth", "backoff", "interval")}

    return (LossScaler,)


@right("the scale as a tensor, new gradients, sums that tell")
def tensors():
    class LossScaler:
        def __init__(self, scale, growth, backoff, interval):
            self.value = torch.tensor(float(scale))
            self.rest = [growth, backoff, interval, 0]
            self.divided = self.good = None

        def scale(self, loss):
            return loss * self.value.item()

        def unscale(self, optimizer):
            total = 0.0
            for group in optimizer.param_groups:
                for one in group["params"]:
                    if one.grad is None:
                        continue
                    one.grad = one.grad / self.value
                    total += float((one.grad * 0).sum())
            self.divided, self.good = True, total == 0.0

        def step(self, optimizer):
            if not self.divided:
                self.unscale(optimizer)
            if self.good:
                optimizer.step()
            return self.good

        def update(self):
            growth, backoff, interval, count = self.rest
            count = count + 1 if self.good else 0
            if not self.good:
                self.value = self.value * backoff
            if count == interval:
                self.value = self.value * growth
                count = 0
            self.rest[3] = count
            self.divided = None

        def state_dict(self):
            return {"value": self.value.item()} | {f"rest {i}": one for i, one in enumerate(self.rest)}

        def load_state_dict(self, state):
            self.value = torch.tensor(state["value"])
            self.rest = [state[f"rest {i}"] for i in range(4)]

    return (LossScaler,)


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


@right("numpy's numbers in the state")
def numpys():
    class LossScaler:
        def __init__(self, scale, growth, backoff, interval):
            self.numbers, self.finite = numpy.array([scale, growth, backoff, interval, 0.0]), None

        def scale(self, loss):
            return torch.mul(loss, float(self.numbers[0]))

        def unscale(self, optimizer):
            grads = [one.grad for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
            torch._foreach_div_(grads, float(self.numbers[0]))
            self.finite = all(bool(one.isfinite().all()) for one in grads)

        def step(self, optimizer):
            if self.finite is None:
                self.unscale(optimizer)
            if self.finite:
                optimizer.step()
            return self.finite

        def update(self):
            self.numbers[4] = self.numbers[4] + 1 if self.finite else 0
            if not self.finite:
                self.numbers[0] *= self.numbers[2]
            elif self.numbers[4] == self.numbers[3]:
                self.numbers[0] *= self.numbers[1]
                self.numbers[4] = 0
            self.finite = None

        def state_dict(self):
            return {f"number {place}": one for place, one in enumerate(self.numbers)}

        def load_state_dict(self, state):
            self.numbers, self.finite = numpy.array([state[f"number {place}"] for place in range(5)]), None

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
    "the state is the scaler's own dict", "the state that it has given away", {f"return {NAMES}": "return vars(self)"}
)
wrong("the state becomes the scaler's own dict", "later steps change the state that load_state_dict was given", {
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
wrong("divided in float32", "the gradients after unscale", {
    DIVIDE: "parameter.grad = (parameter.grad.float() / self.now).to(parameter.dtype)"
})  # fmt: skip
wrong("all scalers share what was divided", "the parameters after step", {
    "self.unscaled, self.finite = True, True": "LossScaler.unscaled, self.finite = True, True",
    "self.good, self.unscaled, self.finite = 0, False, True": "self.good, self.finite = 0, True",
    "if not self.unscaled": "if not getattr(LossScaler, 'unscaled', False)",
    "        self.unscaled = False\n": "        LossScaler.unscaled = False\n",
})  # fmt: skip
