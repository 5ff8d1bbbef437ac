"""Check of ``moe``: results and gradients of one process, and no more on the wire than the rows of tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from checks.engine import Reference, exercise, leaves, refuse, watched

OFFICIAL = Reference("expert_parallelism", "moe", {
    "no gradient comes back from the experts: autograd does not look into a message": {
        "came = Exchange.apply(x[order // k], out, into)":
            "came, x0 = x.new_empty(sum(into), x.shape[1]), x.detach()[order // k]\n"
            "    dist.all_to_all_single(came, x0, into, out)",
        "back = Exchange.apply(found, into, out)":
            "back = found.new_empty(sum(out), x.shape[1])\n"
            "    dist.all_to_all_single(back, found.detach(), out, into)",
    },
    "experts get gradients, and tokens get none from them: the way there has no backward pass":
        {"Exchange.apply(x[order": "Exchange.apply(x.detach().requires_grad_()[order"},
    "rows lie by rank, then by expert, and are taken as if they lay by expert alone": {
        "torch.arange(len(experts)).repeat(ranks).repeat_interleave(theirs.flatten())":
            "torch.arange(len(experts)).repeat_interleave(theirs.sum(0))"},
    "results are added up in the order in which they came back, which is that of the experts, not of the tokens":
        {"index_add(0, order // k": "index_add(0, torch.arange(len(order)) // k"},
    "weights are in the order of tokens, and results in that of experts": {"weights.flatten()[order, None]":
                                                                           "weights.flatten()[:, None]"},
    "results are added up without their weights": {"back * weights.flatten()[order, None]":
                                                   "back + 0 * weights.flatten()[order, None]"},
    "a token's last result replaces the others: add them up": {"index_add(0, order // k": "index_copy(0, order // k"},
    "results are divided by the number of experts of a token: their weights have seen to that":
        {"back * weights": "back / k * weights"},
    "weights are divided by their sum: take them as they are": {
        "weights.flatten()[order, None]": "(weights / weights.sum(-1, keepdim=True)).flatten()[order, None]"},
    "gradients of what travels are divided by the number of ranks: an expert's gradient is the sum over its tokens":
        {"gradient.contiguous()": "gradient / dist.get_world_size()"},
    "tokens are dropped where an expert gets more than its share":
        {"network(came[mine])": "network(came[mine]) * (torch.arange(len(mine)) < len(came) / len(experts))[:, None]"},
})  # fmt: skip
CASES = [{"experts_of_a_rank": 2, "k": 2, "chosen": "freely", "seed": 1},
         {"experts_of_a_rank": 3, "k": 3, "chosen": "some experts far more often", "seed": 2},
         {"experts_of_a_rank": 2, "k": 2, "chosen": "from rank 0 only, and the last rank has no tokens", "seed": 3},
         {"experts_of_a_rank": 1, "k": 1, "chosen": "freely", "seed": 4}]  # fmt: skip
WIDTH, EXTRA = 48, 64  # bytes that may travel beside each row, for its number, its weight, and their gradients


@exercise(OFFICIAL, CASES, title="Tokens travel to their experts", difficulty=3, minutes=30, ranks=(4, 3, 1))
def moe(case: dict[str, Any], moe: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``moe(x, chosen, weights, experts)``."""
    rank, ranks, k, each = dist.get_rank(), dist.get_world_size(), case["k"], case["experts_of_a_rank"]
    torch.manual_seed(case["seed"])  # all ranks draw the same
    networks = [nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, WIDTH)) for _ in range(ranks * each)]
    tokens, scores = torch.randint(6, 14, (ranks,)).tolist(), torch.randn(ranks * each)
    if "rank 0" in case["chosen"]:
        tokens[-1] = tokens[-1] if ranks == 1 else 0
        scores[each:] -= 1e9
    scores *= 1 if case["chosen"] == "freely" else 3
    everywhere = [(scores + torch.randn(n, ranks * each)).topk(k).indices for n in tokens]
    draws = [torch.randn(2, n, WIDTH + k) for n in tokens]
    chosen, (given, gradient) = everywhere[rank], draws[rank]
    x, weights = given[:, :WIDTH].clone().requires_grad_(), given[:, WIDTH:].abs().clone().requires_grad_()
    experts, calls = networks[rank * each : (rank + 1) * each], [0] * each
    for number, network in enumerate(experts):
        network.register_forward_hook(lambda *_, number=number: calls.__setitem__(number, calls[number] + 1))
    with watched() as seen:
        with leaves(x=x, chosen=chosen, weights=weights, experts=nn.ModuleList(experts)):
            y = moe(x, chosen, weights, list(experts))
        refuse(not isinstance(y, torch.Tensor), "the result is no tensor", measured=type(y).__name__)
        refuse(y.shape != x.shape, "the result has not the shape of x", measured=[*y.shape], expected=[*x.shape])
        refuse(not y.requires_grad, "the result has no gradient, so this rank takes no part in the backward pass")
        y.backward(gradient[:, :WIDTH])
    fault = "an expert is called more than once: bring all its tokens together first"
    refuse(max(calls) > 1, fault, measured=max(calls), expected=1)
    rows = len(chosen) * k + sum(int((one // each == rank).sum()) for one in everywhere)
    _count(seen.calls, rows, x)
    named = {"x": x, "weights": weights}
    named |= {
        f"expert {rank * each + n}'s {name}": p for n, one in enumerate(experts) for name, p in one.named_parameters()
    }
    gradients = {
        f"the gradient of {name}": torch.zeros_like(t) if t.grad is None else t.grad for name, t in named.items()
    }
    return {"the result": y.detach()} | gradients


def _count(calls: list[dict[str, Any]], rows: int, x: torch.Tensor) -> None:
    """Refuse bytes beyond ``rows`` on the way there or back, and as many gradients. What all get, travels to each."""
    used = 0
    for call in calls:
        if call["name"] in ("all_gather", "broadcast", "all_reduce"):
            fault = f"{call['name']} brings whole tokens to ranks that have none of their experts"
            refuse(len(x) and call["bytes"] > x.nbytes // 2 + 1024, f"{fault}: send each only to those of its experts")
        used += call["bytes"] * (len(call["members"]) - 1 if call["name"] == "all_gather" else call["name"] != "recv")
    bound = 2 * rows * (WIDTH * 4 + EXTRA) + 4096
    fault = f"more is sent than {rows} rows (of this rank's tokens, and of its experts' results) and as many gradients"
    refuse(used > bound, fault, measured=f"{used} bytes", expected=f"at most {bound} bytes")
