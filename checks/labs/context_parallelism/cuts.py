"""Check of ``training_step``: loss and gradients of one process that has the whole sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from checks.engine import Reference, exercise, leaves, refuse, watched

LABELS, ANGLES = "tokens[:, places], labels[:, places]", "places[:, None] * speeds"
OFFICIAL = Reference("context_parallelism", "training_step", {
    "labels are shifted after the cut: a piece's last token gets a label that is not the next token of the text":
        {LABELS: "tokens[:, places], tokens[:, places].roll(-1, 1).masked_fill(labels[:, places] < 0, -100)"},
    "a rank's last token is not counted: its label is the next token of the text, which another rank has":
        {LABELS: "tokens[:, places], torch.cat([tokens[:, places[1:]], torch.full_like(tokens[:, :1], -100)], 1)"
         ".masked_fill(labels[:, places] < 0, -100)"},
    "labels are not shifted: a token's label is the token itself": {"tokens.roll(-1, 1)": "tokens.clone()"},
    "angles begin at 0 on each rank: they are those of the token's place in the whole sequence":
        {ANGLES: "torch.arange(len(places))[:, None] * speeds"},
    "pairs are turned by t · 10,000^(−2i / pairs): the exponent is −i / pairs":
        {"-torch.arange(model.pairs)": "-2 * torch.arange(model.pairs)"},
    "the last token of the sequence is counted: nothing comes after it": {"labels[:, -1] = -100": "pass"},
    "labels that are part of the prompt are counted": {"labels[position + 1 < prompts[:, None]] = -100": "pass"},
    "the first token after the prompt is not counted as a label: the prompt's last token has it":
        {"labels[position + 1 <": "labels[position <"},
    "it is the mean of the ranks' means: ranks with few counted tokens weigh too much":
        {"    dist.all_reduce(count)": "    count = count.clamp(min=1) * dist.get_world_size()"},
    "the sum is divided by all tokens, also by those that are not counted":
        {"    dist.all_reduce(count)": "    count = len(tokens) * len(position)"},
    "the gradients are averaged over the ranks: here their sum is that of one process":
        {"dist.all_reduce(parameter.grad)": "dist.all_reduce(parameter.grad)\n"
         "        parameter.grad /= dist.get_world_size()"},
    "each rank keeps the gradients of its own tokens": {"dist.all_reduce(parameter.grad)": "pass"},
    "the returned loss is this rank's share: add up all of them": {"    dist.all_reduce(total)\n": ""},
})  # fmt: skip
CASES = [
    {"order": "zig-zag", "prompts": [0, 0], "seed": 1},
    {"order": "zig-zag", "prompts": [5, 0, 9], "seed": 2},
    {"order": "straight", "prompts": [17, 21], "seed": 3},  # on three ranks, the first has no counted token
    {"order": "zig-zag", "prompts": [24, 1, 23], "seed": 4},
]
LENGTH = 24


class Model(nn.Module):
    """Scores of the next token from a token's embedding, turned by its angles, and how many tokens it has read."""

    def __init__(self, words: int, pairs: int) -> None:
        super().__init__()
        self.pairs, self.read = pairs, 0
        self.table = nn.Embedding(words, 2 * pairs)
        self.hidden, self.output = nn.Linear(2 * pairs, 8), nn.Linear(8, words, bias=False)

    def forward(self, tokens: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        self.read += tokens.numel()
        first, second = self.table(tokens).chunk(2, dim=-1)
        cos, sin = cos.to(first.dtype), sin.to(first.dtype)
        turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
        return self.output(torch.tanh(self.hidden(turned)))


@exercise(
    OFFICIAL, CASES, title="Labels, angles and the loss of a cut sequence", difficulty=2, minutes=25, ranks=(3, 2, 1)
)
def training_step(case: dict[str, Any], training_step: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``training_step(model, tokens, prompts, places)``."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(case["seed"])
    words, pairs = torch.randint(3, 7, (2,)).tolist()
    model = Model(words, pairs)
    tokens, prompts = torch.randint(words, (len(case["prompts"]), LENGTH)), torch.tensor(case["prompts"])
    pieces = torch.arange(LENGTH).chunk(2 * ranks)
    numbers = (rank, 2 * ranks - 1 - rank) if case["order"] == "zig-zag" else (2 * rank, 2 * rank + 1)
    places = torch.cat([pieces[one] for one in numbers])
    with leaves(tokens=tokens, prompts=prompts, places=places), watched() as seen:
        loss = training_step(model, tokens, prompts, places)
    mine, gradients = len(tokens) * len(places), sum(one.nbytes for one in model.parameters())
    words_ = "the model reads more tokens than this rank has: each rank computes its own"
    refuse(model.read > mine, words_, measured=model.read, expected=mine)
    words_ = "hands in more than each gradient once, and 256 bytes for loss and count"
    refuse(seen.sent() > gradients + 256, words_, measured=seen.sent(), expected=f"at most {gradients + 256}")
    missing = [name for name, one in model.named_parameters() if one.grad is None]
    refuse(missing, f"there is no gradient of {missing and missing[0]}")
    refuse(loss is None, "the loss does not come back: is there a return?")
    words_ = "the loss is not a number: the mean over no token at all is 0 / 0. A rank may have nothing to count"
    refuse(float(loss) != float(loss), words_)
    return {"the loss": torch.tensor(float(loss))} | {
        f"the gradient of {name}": one.grad for name, one in model.named_parameters()
    }
