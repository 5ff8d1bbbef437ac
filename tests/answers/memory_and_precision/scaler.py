"""Exercise 3 of the lab on memory and precision: a loss scaler."""

import math

import torch
from known_answers import right, wrong


class LossScaler:
    def __init__(self, scale, growth, backoff, interval):
        self.now, self.growth, self.backoff, self.interval = scale, growth, backoff, interval
        self.good, self.unscaled, self.finite = 0, False, True

    def scale(self, loss):
        return loss * self.now

    def unscale(self, optimizer):
        self.unscaled, self.finite = True, True
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad /= self.now
                    self.finite &= bool(parameter.grad.isfinite().all())

    def step(self, optimizer):
        if not self.unscaled:
            self.unscale(optimizer)
        if self.finite:
            optimizer.step()
        return self.finite

    def update(self):
        self.unscaled = False
        self.good = self.good + 1 if self.finite else 0
        if not self.finite:
            self.now *= self.backoff
        elif self.good == self.interval:
            self.now *= self.growth
            self.good = 0

    def state_dict(self):
        return {name: vars(self)[name] for name in ("now", "growth", "backoff", "interval", "good")}

    def load_state_dict(self, state):
        vars(self).update(state)


DIVIDE = "parameter.grad /= self.now"
LOOK = "self.finite &= bool(parameter.grad.isfinite().all())"
COUNT = "self.good = self.good + 1 if self.finite else 0"
GROWN = "            self.good = 0\n"
NAMES = '("now", "growth", "backoff", "interval", "good")'
ONCE = "        if not self.unscaled:\n            self.unscale(optimizer)\n"
NEW = "        self.unscaled = False\n"
STEP = "        if self.finite:\n            optimizer.step()\n"


EQUAL = {
    "10: True → False": "unscale says it anew before anybody asks",
}


# --- right, and written differently


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


# --- wrong

wrong(
    "torch's own",
    "write it yourself",
    {
        "        self.good, self.unscaled": "        self.own = torch.amp.GradScaler('cpu')\n        self.good, self.unscaled"
    },
)
wrong("not scaled", "not scaled at all", {"return loss * self.now": "return loss"})
wrong("never divided", "and once only", {DIVIDE: "pass"})
wrong("divided twice with clipping", "by the scale, and once only", {ONCE: "        self.unscale(optimizer)\n"})
wrong("never divided again", "takes one step", {NEW: ""})
wrong("only infinite ones", "no step", {LOOK: "self.finite &= not bool(parameter.grad.isinf().any())"})
wrong("only those that are no numbers", "no step", {LOOK: "self.finite &= not bool(parameter.grad.isnan().any())"})
wrong("the last gradient decides", "no step", {LOOK: "self.finite = bool(parameter.grad.isfinite().all())"})
wrong(
    "the first group alone",
    "gradient",
    {"for group in optimizer.param_groups:": "for group in optimizer.param_groups[:1]:"},
)
wrong("one finite number is enough", "no step", {".isfinite().all()": ".isfinite().any()"})
wrong("steps all the same", "no step", {STEP: "        optimizer.step()\n"})
wrong(
    "zeros instead of a skip",
    "no step",
    {
        STEP: "        for group in optimizer.param_groups:\n            for parameter in group['params']:\n                if parameter.grad is not None and not self.finite:\n                    parameter.grad.zero_()\n        optimizer.step()\n"
    },
)
wrong("no backoff", "multiplied by backoff", {"self.now *= self.backoff": "pass"})
wrong("always half", "another one than the steps", {"self.now *= self.backoff": "self.now /= 2"})
wrong("always double", "another one than the steps", {"self.now *= self.growth": "self.now *= 2"})
wrong("never grows", "not grown", {"self.now *= self.growth": "pass"})
wrong("good steps need not be in a row", "too early", {COUNT: "self.good += self.finite"})
wrong("the count goes on after growth", "not grown", {GROWN: ""})
wrong("one step late", "not grown", {"self.good == self.interval": "self.good > self.interval"})
wrong("one step early", "too early", {"self.good == self.interval": "self.good >= self.interval - 1"})
wrong("the count is not saved", "grow", {NAMES: '("now", "growth", "backoff", "interval")'})
wrong("the scale is not saved", "the saved state is not used", {NAMES: '("growth", "backoff", "interval", "good")'})
wrong("the settings are not saved", "another one than the steps", {NAMES: '("now", "good")'})
wrong("a state of tensors", "plain numbers", {"vars(self)[name] for": "torch.tensor(vars(self)[name]) for"})
wrong(
    "a state that empties",
    "second time",
    {"    def state_dict(self):\n": "    def state_dict(self):\n        self.good += 1\n"},
)
wrong("says nothing", "whether the optimizer took its step", {"        return self.finite\n": ""})
wrong(
    "updates in step",
    "another one than the steps",
    {"        return self.finite\n": "        self.update()\n        return self.finite\n"},
)
wrong(
    "clips by itself",
    "and once only",
    {
        STEP: "        if self.finite:\n            for group in optimizer.param_groups:\n                torch.nn.utils.clip_grad_norm_([one for one in group['params'] if one.grad is not None], 0.1)\n            optimizer.step()\n"
    },
)
wrong(
    "two steps",
    "one step",
    {"            optimizer.step()\n": "            optimizer.step()\n            optimizer.step()\n"},
)
wrong(
    "changes weights in unscale",
    "parameters change",
    {DIVIDE: "parameter.grad /= self.now\n                    parameter.data *= 1.5"},
)
wrong("the state is the scaler's own dict", "changes the state that it has given away", {
    "        return {name: vars(self)[name] for name in " + NAMES + "}": "        return vars(self)"
})  # fmt: skip
wrong("all scalers share what was divided", "and once only", {
    "self.unscaled, self.finite = True, True": "LossScaler.unscaled, self.finite = True, True",
    "self.good, self.unscaled, self.finite = 0, False, True": "self.good, self.finite = 0, True",
    "if not self.unscaled": "if not getattr(LossScaler, 'unscaled', False)",
    "        self.unscaled = False\n": "        LossScaler.unscaled = False\n",
})  # fmt: skip
wrong("a number", "as a tensor", {"return loss * self.now": "return loss.item() * self.now"})
wrong(
    "fails without a gradient",
    "raised",
    {"                if parameter.grad is not None:\n": "                if True:\n"},
)
wrong(
    "never below 1",
    "another one than the steps",
    {"self.now *= self.backoff": "self.now = max(1.0, self.now * self.backoff)"},
)
wrong("powers of two only", "another one than the steps", {
    "return loss * self.now": "return loss * 2.0 ** round(math.log2(self.now))"
})  # fmt: skip
wrong(
    "divided in float32",
    "in step",
    {DIVIDE: "parameter.grad = (parameter.grad.float() / self.now).to(parameter.dtype)"},
)
wrong("the state that was given is written to", "is changed by later steps", {
    "        vars(self).update(state)": "        vars(self).update(state)\n        self.given = state",
    "    def update(self):\n": "    def update(self):\n        vars(self).get('given', {})['good'] = self.good\n",
})  # fmt: skip


@right("numpy's numbers in the state")
def numpys():
    import numpy

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
