"""Exercise 4 of the lab on context parallelism: what stands around attention. The official solution has the rest."""

import torch
import torch.distributed as dist
from known_answers import right, wrong
from torch.nn import functional
from torch.nn.functional import cross_entropy


@right("all gradients in one message, with count and loss; divided at the end")
def one_message():
    def training_step(model, tokens, prompts, places):
        length = tokens.shape[1]
        following = (places + 1).clamp(max=length - 1)
        labels = tokens[:, following]
        counted = (places + 1 < length) & (places + 1 >= prompts.unsqueeze(1))
        i = torch.arange(model.pairs, dtype=torch.float64)
        angles = torch.outer(places.double(), 10_000 ** (-i / model.pairs))
        scores = model(tokens[:, places], torch.cos(angles), torch.sin(angles))
        losses = functional.cross_entropy(scores.transpose(1, 2), labels, reduction="none")
        loss = (losses * counted).sum()
        loss.backward()
        parameters = list(model.parameters())
        numbers = torch.cat([one.grad.flatten() for one in parameters] + [torch.stack([loss.detach(), counted.sum()])])
        dist.all_reduce(numbers)
        numbers /= numbers[-1].clone()
        for one, new in zip(parameters, numbers.split([one.numel() for one in parameters] + [2]), strict=False):
            one.grad = new.view_as(one).clone()
        return numbers[-2].item()

    return (training_step,)


@right("log-probabilities by hand, waits that come later, counts that are gathered")
def by_hand():
    def training_step(model, tokens, prompts, places):
        batch, length = tokens.shape
        labels = torch.full((batch, length), -100)
        for row, prompt in enumerate(prompts.tolist()):
            for place in range(max(prompt - 1, 0), length - 1):
                labels[row, place] = tokens[row, place + 1]
        labels = labels[:, places]
        rows, columns = (labels >= 0).nonzero(as_tuple=True)
        counts = [torch.zeros((), dtype=torch.int64) for _ in range(dist.get_world_size())]
        dist.all_gather(counts, torch.tensor(len(rows)))
        total = sum(counts).item()
        turns = torch.stack([places / 10_000 ** (i / model.pairs) for i in range(model.pairs)], dim=-1)
        turned = torch.polar(torch.ones_like(turns), turns)
        logs = model(tokens[:, places], turned.real, turned.imag).log_softmax(-1)
        loss = -logs[rows, columns, labels[rows, columns]].sum() / total
        loss.backward()
        works = [dist.all_reduce(one.grad, async_op=True) for one in model.parameters()]
        loss = loss.data
        dist.all_reduce(loss)
        for work in works:
            work.wait()
        return loss

    return (training_step,)


@right("the mean of all, by hooks: each rank's mean counts by its share")
def by_hooks():
    def training_step(model, tokens, prompts, places):
        ranks, n = dist.get_world_size(), tokens.shape[1]
        after = torch.cat([tokens[:, 1:], torch.full((len(tokens), 1), -1)], dim=1)
        hidden = torch.arange(1, n + 1).expand(len(tokens), -1) < prompts.view(-1, 1)
        labels = torch.where(hidden, -1, after).index_select(1, places)
        own = (labels != -1).sum().float()
        both = own.clone()
        dist.all_reduce(both)

        def sum_up(parameter):
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG if dist.get_backend() == "nccl" else dist.ReduceOp.SUM)
            parameter.grad /= ranks

        hooks = [one.register_post_accumulate_grad_hook(sum_up) for one in model.parameters()]
        turns = places.float().view(-1, 1) * torch.logspace(0, -4 * (1 - 1 / model.pairs), model.pairs)
        scores = model(tokens.index_select(1, places), turns.cos()[None], turns.sin()[None])
        mean = cross_entropy(scores.reshape(labels.numel(), -1), labels.reshape(-1), ignore_index=-1, reduction="sum")
        (mean * ranks / both).backward()
        for hook in hooks:
            hook.remove()
        parts = [torch.empty(()) for _ in range(ranks)]
        dist.all_gather(parts, (mean / both).detach())
        return torch.stack(parts).sum().view(1)

    return (training_step,)


right("the gradients are gathered", {
    "dist.all_reduce(parameter.grad)":
    "every = [torch.empty_like(parameter) for _ in range(dist.get_world_size())]\n"
    "        dist.all_gather(every, parameter.grad)\n        parameter.grad = torch.stack(every).sum(0)",
})  # fmt: skip
right("a rank without a label has a loss of zero", {
    "    loss = cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction=\"sum\") / count\n":
    "    own = (labels != -100).sum()\n    loss = cross_entropy(scores.flatten(0, 1), labels.flatten()) * own / count\n"
    "    if own == 0:\n        loss = scores.sum() * 0\n",
})  # fmt: skip

right("counts are known without asking", {
    "    dist.all_reduce(count)\n": "    count = (tokens_in_all - prompts.clamp(min=1)).sum()\n",
    "    position = ": "    tokens_in_all = tokens.shape[1]\n    position = ",
})  # fmt: skip
right("counts as objects, a sequence after the other", {
    "    dist.all_reduce(count)\n":
    "    every = [None] * dist.get_world_size()\n    dist.all_gather_object(every, count.item())\n    count = sum(every)\n",
    "scores = model(tokens, angles.cos(), angles.sin())":
    "scores = torch.cat([model(one[None], angles.cos()[None], angles.sin()[None]) for one in tokens])",
})  # fmt: skip

SUM = 'reduction="sum") / count'
wrong("the mean of a rank without a label", "0 / 0", {SUM: 'reduction="mean") * (labels != -100).sum() / count'})
wrong("the whole sequences on each rank", "reads more tokens", {
    "    tokens, labels = tokens[:, places], labels[:, places]\n": "    places = position\n",
    "    dist.all_reduce(count)": "    count = count * dist.get_world_size()",
})  # fmt: skip
wrong("gradients twice", "hands in more", {
    "dist.all_reduce(parameter.grad)": "dist.all_reduce(parameter.grad)\n        dist.all_reduce(parameter.grad)\n"
    "        parameter.grad /= dist.get_world_size()",
})  # fmt: skip
wrong("gradients of the losses' sum", "the gradient of", {
    SUM: 'reduction="sum")', "    total = loss.detach().clone()": "    total = loss.detach() / count",
})  # fmt: skip
wrong(
    "labels in the tokens",
    "changes `tokens`",
    {"labels = tokens.roll(-1, 1)": "labels = tokens.roll(-1, 1)\n    tokens[:, -1] = 0"},
)
wrong("the prompts are shortened", "changes `prompts`", {
    "labels[position + 1 < prompts[:, None]] = -100": "prompts -= 1\n    labels[position < prompts[:, None]] = -100",
})  # fmt: skip
wrong("nothing comes back", "is there a return", {"    return total": "    return None"})
wrong("no backward pass", "raised", {"    loss.backward()\n": ""})
wrong("the model on each label's sequence shifted", "the loss", {
    "model(tokens, angles": "model(tokens.roll(-1, 1), angles",
})  # fmt: skip
wrong("sine and cosine change places", "the loss", {"angles.cos(), angles.sin()": "angles.sin(), angles.cos()"})
wrong(
    "the next place, also behind the end",
    "raised",
    {"tokens[:, places], labels[:, places]": "tokens[:, places], tokens[:, places + 1]"},
)
wrong("only the first rank has the loss", "on rank 1, the loss", {
    "    dist.all_reduce(total)\n": "    dist.reduce(total, 0)\n"
})  # fmt: skip
