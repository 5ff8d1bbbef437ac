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


@right("masks, whole numbers of another kind, a smooth step")
def masks():
    def route(logits, bias, k, nodes, limit):
        tokens, experts = logits.shape
        scores = 1 / (1 + torch.exp(-logits))
        with torch.no_grad():
            grouped = (scores + bias).unflatten(1, (nodes, experts // nodes))
            value = grouped.sort(-1).values[..., -2:].sum(-1)
            least = value.sort(-1).values[:, -limit, None]
            grouped = torch.where(
                (value >= least)[..., None], grouped, torch.tensor(float("-inf"), dtype=grouped.dtype)
            )
            chosen = grouped.flatten(1).argsort(-1, descending=True)[:, :k]
            mask = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, chosen, True)
        chosen = mask.nonzero()[:, 1].view(tokens, k)
        weights = torch.nn.functional.normalize(scores * mask, p=1, dim=-1)
        return chosen.int(), weights[mask].view(tokens, k)

    def update(bias, chosen, speed):
        load = torch.zeros_like(bias).index_add(0, chosen.flatten(), torch.ones(chosen.numel(), dtype=bias.dtype))
        return bias + speed * torch.tanh(3 * (1 - load / load.mean()))

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


LOAD = "    load = torch.bincount(chosen.flatten(), minlength=len(bias)).double()\n"
STEP = "    return bias + speed * (load.mean() - load).sign()"
right("up or down, by comparison", {STEP: "    return bias + torch.where(load < load.mean(), speed, -speed)"})
wrong("the last experts have no choices", "raised", {", minlength=len(bias)": ""})
wrong("a step as large as the error", "moves by more than `speed`", {".sign()": ""})
wrong("the bias is not moved", "load of the busiest expert", {STEP: "    return bias.clone()"})
wrong("only ever down", "load of the busiest expert", {STEP: "    return bias - speed * (load > 3 * load.mean())"})
wrong(
    "no gradient through the weights",
    "no gradient",
    {"scores = logits.sigmoid()": "scores = logits.detach().sigmoid()"},
)
wrong("the router learns through the choice", "the gradient of the logits", {
    "    return chosen, weights / weights": "    return chosen, weights / weights.detach()",
})  # fmt: skip
wrong("weights alone", "does not return two things", {
    "    return chosen, weights / weights": "    return weights / weights",
})  # fmt: skip
wrong("weights of all experts", "weights is not [tokens, k]", {
    "    return chosen, weights / weights.sum(-1, keepdim=True)":
        "    return chosen, torch.zeros_like(scores).scatter(1, chosen, weights / weights.sum(-1, keepdim=True))",
})  # fmt: skip
wrong("one expert more than once", "the same expert twice", {
    "    weights = scores.gather": "    chosen = chosen[:, :1].expand(-1, k)\n    weights = scores.gather",
})  # fmt: skip
wrong("numbers within the node", "chosen experts", {
    "    weights = scores.gather(1, chosen)": "    weights = scores.gather(1, chosen)\n    chosen = (chosen + 1) % len(bias)",
})  # fmt: skip
wrong("the largest weights come first, alone", "their weights", {
    "    return chosen, weights": "    chosen = chosen.sort(-1).values\n    return chosen, weights",
})  # fmt: skip
wrong("logits are changed", "changes `logits`", {"    scores = logits": "    logits.data += 1\n    scores = logits"})
