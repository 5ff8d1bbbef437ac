"""Exercise 3 of the lab on memory and precision: a loss scaler. What is not here is in the official solution."""

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


wrong("zeros instead of a skip", "how often the optimizer steps", {
    STEP: "        if not self.finite:\n            for group in optimizer.param_groups:\n"
    "                for parameter in group['params']:\n                    parameter.grad = None\n"
    "        optimizer.step()\n"
})  # fmt: skip
wrong("says nothing", "step returns nothing", {"        return self.finite\n": ""})
wrong(
    "the state is the scaler's own dict",
    "changes in later steps: make a copy",
    {f"return {NAMES}": "return vars(self)"},
)
wrong("fails without a gradient", "raised TypeError", {"if parameter.grad is not None:": "if True:"})
wrong("clips by itself", "the parameters after step 1", {
    STEP: "        if self.finite:\n            for group in optimizer.param_groups:\n"
    "                torch.nn.utils.clip_grad_norm_([one for one in group['params'] if one.grad is not None], 0.1)\n"
    "            optimizer.step()\n"
})  # fmt: skip
