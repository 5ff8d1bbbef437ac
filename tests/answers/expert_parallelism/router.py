"""Exercise 2 of the lab on expert parallelism: a router in balance. What is not here is in the official solution."""

import torch
from known_answers import right, wrong


@right("token after token, in place")
def token_after_token():
    def route(logits, bias, k, nodes, limit):
        scores = torch.sigmoid(logits)
        each = logits.shape[1] // nodes
        chosen = []
        for row in (scores.detach() + bias).tolist():
            values = [sum(sorted(row[n * each : (n + 1) * each])[-2:]) for n in range(nodes)]
            best = sorted(range(nodes), key=lambda n: values[n])[-limit:]
            allowed = [e for e in range(len(row)) if e // each in best]
            chosen.append(sorted(allowed, key=lambda e: -row[e])[:k])
        chosen = torch.tensor(chosen)
        weights = torch.stack([one[e] for one, e in zip(scores, chosen, strict=True)])
        return chosen, weights / weights.sum(1, keepdim=True)

    def update(bias, chosen, speed):
        for e in range(len(bias)):
            load = (chosen == e).sum()
            bias[e] += speed * torch.sign(chosen.numel() / len(bias) - load)

    return route, update


@right("the sum of biases stays, scaled by the largest error")
def centred():
    def update(bias, chosen, speed):
        counts = torch.bincount(chosen.view(-1), minlength=bias.numel()).to(bias.dtype)
        error = counts.mean() - counts
        return bias.add(error / error.abs().max().clamp(min=1), alpha=speed)

    return (update,)


@right("nodes that are not chosen taken off, weights by one-hot")
def taken_off():
    def route(logits, bias, k, nodes, limit):
        scores = logits.sigmoid()
        shifted = (scores + bias).clone()
        table = shifted.view(scores.shape[0], nodes, -1)
        out = table.topk(2, dim=-1)[0].sum(-1).topk(nodes - limit, dim=-1, largest=False)[1]
        table = table.masked_fill(torch.nn.functional.one_hot(out, nodes).sum(1).bool()[..., None], -1e30)
        chosen = torch.topk(table.reshape(scores.shape), k, sorted=False)[1]
        picked = torch.einsum("te,tke->tk", scores, torch.nn.functional.one_hot(chosen, scores.shape[1]).to(scores))
        return [chosen, picked / picked.sum(dim=1).unsqueeze(1)]

    return (route,)


STEP = "    return bias + speed * (load.mean() - load).sign()"
wrong("a step as large as the error", "moves by more than `speed`", {".sign()": ""})
wrong("only ever down", "load of the busiest expert", {STEP: "    return bias - speed * (load > 3 * load.mean())"})
wrong("the router learns through the choice", "the gradient of the logits", {
    "    return chosen, weights / weights": "    return chosen, weights / weights.detach()",
})  # fmt: skip
wrong("one expert more than once", "the same expert twice", {
    "    weights = scores.gather": "    chosen = chosen[:, :1].expand(-1, k)\n    weights = scores.gather",
})  # fmt: skip
wrong("numbers within the node", "chosen experts", {
    "    weights = scores.gather(1, chosen)": "    weights = scores.gather(1, chosen)\n    chosen = (chosen + 1) % len(bias)",
})  # fmt: skip
