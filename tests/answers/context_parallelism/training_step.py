"""Exercise 4 of the lab on context parallelism: what stands around attention. The official solution has the rest."""

import torch
import torch.distributed as dist
from known_answers import right, wrong
from torch.nn import functional


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
wrong(
    "labels in the tokens",
    "changes `tokens`",
    {"labels = tokens.roll(-1, 1)": "labels = tokens.roll(-1, 1)\n    tokens[:, -1] = 0"},
)
wrong(
    "the next place, also behind the end",
    "raised",
    {"tokens[:, places], labels[:, places]": "tokens[:, places], tokens[:, places + 1]"},
)
