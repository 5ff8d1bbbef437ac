"""Checks of a sequence in pieces: which of its tokens a rank has, and a step of training on them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from checks.engine import Reference, exercise, leaves, refuse, watched
from checks.engine.plain import from_array, kind_of, number, shorten

PIECES = "[pieces[rank], pieces[2 * ranks - 1 - rank]]"
ZIGZAG = Reference("context_parallelism", "my_tokens together", {
    "each rank has one stretch of a document: the last ranks have much more to look at than the first":
        {PIECES: "[pieces[2 * rank], pieces[2 * rank + 1]]"},
    "the whole sequence is cut by zig-zag, and not each of its documents": {"in lengths:": "in [sum(lengths)]:"},
    "tokens are dealt out one by one: each piece is a single token":
        {PIECES: "[torch.arange(start, start + length)[rank::ranks]]"},
    "a rank has a piece from the front and one half of the pieces later, not its mirror image":
        {PIECES: "[pieces[rank], pieces[rank + ranks]]"},
    "places are counted in each document from 0 on, and not in the whole sequence": {"start += length": "pass"},
    "together puts the ranks' parts one behind the other": {"[:, order.argsort()]": ""},
    "together permutes once more where it should permute back": {"order.argsort()": "order"},
})  # fmt: skip


def draw(rng: random.Random, number: int) -> dict[str, Any]:
    """One document; then several, of any multiples of 2N."""
    ranks = 3 if number == 0 else rng.choice((1, 2, 3, 4, 5))
    lengths = [2 * ranks * rng.randint(1, 4) for _ in range(1 if number < 2 else rng.randint(1, 4))]
    return {"ranks": ranks, "lengths": lengths, "seed": rng.randrange(2**31)}


@exercise(ZIGZAG, draw, title="Zig-zag, there and back", difficulty=2, minutes=20, timeout=30)
def zigzag(case: dict[str, Any], my_tokens: Callable[..., Any], together: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``my_tokens(lengths, rank, ranks)`` and ``together(parts, lengths)``."""
    ranks, lengths = case["ranks"], case["lengths"]
    with leaves(lengths=lengths):
        results = [my_tokens(lengths, rank, ranks) for rank in range(ranks)]
    places = [_places(result, sum(lengths)) for result in results]
    times = Counter(place for mine in places for place in mine)
    sees = [place + 1 for length in lengths for place in range(length)]
    pieces = max(sum(after != before + 1 for before, after in pairwise([-2, *sorted(mine)])) for mine in places)
    seen: dict[str, Any] = {
        "how many ranks have each token": [times[place] for place in range(sum(lengths))],
        "pairs of query and key on each rank": [sum(sees[place] for place in mine) for mine in places],
        "tokens on each rank": list(map(len, places)),
        "pieces of a rank, beyond two of each document": max(0, pieces - 2 * len(lengths)),
    }
    torch.manual_seed(case["seed"])
    shape = 2, sum(lengths), *torch.randint(1, 4, (case["seed"] % 3,)).tolist()
    whole = torch.randint(10**6, shape) if case["seed"] % 2 else torch.randn(shape)
    parts = [whole[:, mine] for mine in places]
    with leaves(parts=parts, lengths=lengths):
        result = together(parts, lengths)
    refuse(not isinstance(result, torch.Tensor), "together does not return a tensor", measured=kind_of(result))
    return seen | {"what together returns": result}


def _places(result: Any, length: int) -> list[int]:
    """The places that a rank has, out of a tensor, an array, a list or a range."""
    result = from_array(result)
    found = [number(from_array(one), whole=True) for one in result] if isinstance(result, list | tuple | range) else []
    fault = "my_tokens does not return a rank's places in the sequence, whole numbers in one row"
    refuse(not found or None in found, fault, measured=shorten(result))
    outside = [place for place in found if not 0 <= place < length]
    refuse(outside, f"my_tokens returns a place that is not in the sequence of {length} tokens", measured=outside[:1])
    return found


LABELS, ANGLES = "tokens[:, places], labels[:, places]", "places[:, None] * speeds"
STEP = Reference("context_parallelism", "training_step", {
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
SEQUENCES = [
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
    STEP, SEQUENCES, title="Labels, angles and the loss of a cut sequence", difficulty=2, minutes=25, ranks=(3, 2, 1)
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
    mine, most = len(tokens) * len(places), sum(one.nbytes for one in model.parameters()) + 256
    refuse(model.read > mine, "the model reads more tokens than this rank has", measured=model.read, expected=mine)
    sentence = "hands in more than each gradient once, and 256 bytes for loss and count"
    refuse(seen.sent() > most, sentence, measured=seen.sent(), expected=f"at most {most}")
    refuse(loss is None, "the loss does not come back: is there a return?")
    refuse(float(loss) != float(loss), "the loss is NaN: a rank may count nothing, and the mean of nothing is 0 / 0")
    gradients = {f"the gradient of {name}": one.grad for name, one in model.named_parameters()}
    return {"the loss": torch.tensor(float(loss))} | gradients
