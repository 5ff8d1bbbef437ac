"""Exercise 6 of the lab on data parallelism: state that replicas lose. What is not here is in the official solution."""

from known_answers import right, wrong

OUT = "return self.head(hidden), hidden.detach().sum(0, keepdim=True)"
CALL = "logits, sums = parallel(x)"
TOTAL = "parallel.module.total += sums.sum(0)"
ROWS = "parallel.module.rows += len(x)"
right("all hidden values are gathered, buffers get a new value", {
    OUT: "return self.head(hidden), hidden.detach()",
    TOTAL: "parallel.module.total = parallel.module.total + sums.sum(0)",
    ROWS: "parallel.module.rows = parallel.module.rows + len(sums)",
})  # fmt: skip
right("a list that all replicas share", {
    'self.register_buffer("rows", torch.zeros(()))': 'self.register_buffer("rows", torch.zeros(()))\n        self.seen = []',
    OUT: "self.seen.append(hidden.detach().sum(0))\n        return self.head(hidden)",
    CALL: "logits = parallel(x)",
    TOTAL: "model = parallel.module\n    for one in model.seen:\n        model.total += one.to(model.total.device)\n"
    "    model.seen.clear()",
})  # fmt: skip
right("the hidden values once more, by the model itself", {
    OUT: "return self.head(hidden)",
    CALL: "logits, model = parallel(x), parallel.module",
    TOTAL: "with torch.no_grad():\n        model.total += torch.tanh(model.first(x.to(model.total.device))).sum(0)",
})  # fmt: skip
wrong("graphs are kept", "detach what you add", {"hidden.detach().sum": "hidden.sum"})
wrong("one GPU does it all", "GPUs that compute", {
    CALL: "logits, sums = parallel.module(x.to(parallel.module.total.device))"
})  # fmt: skip
wrong("both are returned", "no tensor of logits", {"return logits": "return logits, sums"})
wrong("no gradients", "no gradient comes back", {CALL: "with torch.no_grad():\n        logits, sums = parallel(x)"})
wrong("plain attributes", "leave its layers and buffers", {
    'self.register_buffer("rows", torch.zeros(()))': "self.rows = torch.zeros(())"
})  # fmt: skip
