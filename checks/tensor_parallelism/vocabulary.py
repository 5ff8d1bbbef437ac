"""Check of ``vocabulary_loss``: cross-entropy of scores that stay where they are, also of very large ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from checks.core import Reference, leaves, refuse
from checks.tensor_parallelism import passes

MAX = "dist.all_reduce(largest, dist.ReduceOp.MAX)"
TOTAL, FOUND, RESULT = "SumOverRanks.apply(scores.exp().sum(1))", "SumOverRanks.apply(found)", ").mean()"
OFFICIAL = Reference("tensor_parallelism", "vocabulary_loss", {
    "the sum of exp goes over this rank's scores alone": {TOTAL: "scores.exp().sum(1)"},
    "the target's score counts only on the rank that has it": {FOUND: "found"},
    "the sum of exp and the target's score are this rank's alone: nothing is summed over the ranks": passes.NO_G,
    "each rank takes its own largest score away: it has to be the same one on all": {MAX: "pass"},
    "what is taken away is not the largest score of all ranks: exp of a larger one may be inf":
        {MAX: "dist.broadcast(largest, 0)"},
    "exp of a large number is inf, of a very small one 0: first take each token's largest score away":
        {MAX: "largest = torch.zeros_like(largest)"},
    "one largest score is taken away from all tokens: exp of the others' scores may be 0, so take each token's own":
        {MAX: "largest = largest.amax().expand(len(largest)).clone()\n    dist.all_reduce(largest, dist.ReduceOp.MAX)"},
    "the largest score passes on a gradient: it is a constant, so detach it":
        {"scores.detach().amax(1)": "scores.amax(1).clone()"},
    "a target is looked up in each rank's columns as if they began at 0: take `start` away":
        {"targets - start": "targets"},
    "a rank's columns begin at `start`, and not at its rank times their number: other ranks may have more or fewer":
        {"targets - start": "targets - dist.get_rank() * scores.shape[1]"},
    "ranks that do not have the target add a score too: theirs is 0": {".masked_fill(elsewhere, 0.0)": ""},
    "the last column of each rank counts for nobody": {"place >= scores.shape[1]": "place >= scores.shape[1] - 1"},
    "the first column of each rank counts for nobody": {"place < 0": "place < 1"},
    "the first column of the next rank counts on this rank too":
        {">= scores.shape[1]": "> scores.shape[1]", "elsewhere, 0)[": "elsewhere, 0).clamp(max=scores.shape[1] - 1)["},
    "a place before this rank's columns is looked up from their end: it is elsewhere":
        {"(place < 0) | (place >= scores.shape[1])": "place >= scores.shape[1]",
         "place.masked_fill(elsewhere, 0)": "(place.masked_fill(elsewhere, 0) % scores.shape[1])"},
    "it is the sum over the tokens: return the mean": {RESULT: ").sum()"},
    "it is the negative of the loss": {"return (total": "return -(total"},
    "it is the mean over the ranks of their sums: all ranks together have one sum": passes.MEAN_G,
    "the target's score gets no gradient": {FOUND: "SumOverRanks.apply(found.detach())"},
    "the sum of exp gets no gradient": {"scores.exp().sum(1)": "scores.exp().sum(1).detach()"},
    "the gradient is summed over the ranks, and all have the same one: backward nothing is sent": passes.SUM_BACK_G,
    "the gradient that the loss gets itself is left out": {
        "return (total.log() - SumOverRanks.apply(found)).mean()":
        "loss = (total.log() - SumOverRanks.apply(found)).mean()\n"
        "    loss.register_hook(torch.ones_like)\n    return loss"},
})  # fmt: skip
CASES = [
    {"scores_around": [0], "type": "float64", "seed": 1},
    {"scores_around": [1000], "type": "float32", "seed": 2},
    {"scores_around": [-1000], "type": "float32", "seed": 3},
    {"scores_around": [-1000, 1000], "type": "float32", "seed": 4},  # in turn
    {"scores_around": [0], "last_column_larger_by": 1000, "type": "float64", "seed": 5},
]
NUMBERS = 3  # that are handed in for each token


def play(case: dict[str, Any], vocabulary_loss: Callable[..., Any]) -> dict[str, Any]:
    rank, ranks, dtype = dist.get_rank(), dist.get_world_size(), getattr(torch, case["type"])
    torch.manual_seed(case["seed"])
    columns = torch.randint(5, 12, (ranks,)).tolist()
    columns[-1] = 1 if case["seed"] == 4 else columns[-1]
    ends = torch.tensor(columns).cumsum(0)
    start, tokens = int(ends[rank]) - columns[rank], 8 + 2 * ranks
    whole = 3 * torch.randn(tokens, sum(columns), dtype=dtype)
    whole += torch.tensor((case["scores_around"] * tokens)[:tokens])[:, None]
    whole[:, -1] += case.get("last_column_larger_by", 0)
    targets = torch.randint(sum(columns), (tokens,))
    targets[: 2 * ranks] = torch.cat([ends - 1, ends - torch.tensor(columns)])  # each rank's last, and first column
    scores = whole[:, start : start + columns[rank]].clone()

    def loss(scores: torch.Tensor) -> Any:
        mine = targets[: len(scores)]
        with leaves(targets=mine):
            return passes.tensor(vocabulary_loss(scores, mine, start), (), "the loss")

    def sparing(calls: Sequence[Mapping[str, Any]]) -> str:
        most, sent = 8 * NUMBERS * tokens, sum(call["bytes"] for call in calls)
        words = f"more is handed in than {NUMBERS} numbers for each token (in bytes): scores stay where they are"
        refuse(sent > most, words, measured=sent, expected=f"at most {most}")
        refuse(len(calls) > NUMBERS, f"more than {NUMBERS} all-reduces and all-gathers together", measured=len(calls))
        return ""

    x = {"scores": scores.requires_grad_(), "other scores": scores.detach()[: tokens - 1].clone().requires_grad_()}
    return passes.train(loss, x, {}, sparing)
