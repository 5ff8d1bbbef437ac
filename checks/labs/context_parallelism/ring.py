"""Check of ``ring_attention``: attention of one process, and the next block is on its way while a rank computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from checks.engine import Reference, exercise, leaves, refuse, same, watched
from checks.engine.plain import kind_of

MASK, SEND = "causal and origin == rank", "for one in keys]"
OFFICIAL = Reference("context_parallelism", "ring_attention", {
    "the triangle is masked in every block: it belongs to a rank's own keys only": {MASK: "causal"},
    "a rank's own block is not masked: its tokens see later ones": {MASK: "False"},
    "the triangle is masked without being asked for: `causal` is False": {MASK: "origin == rank"},
    "a block is taken for another rank's: after s steps rank r has that of rank r - s, around the ring":
        {"(rank - step) % ranks": "(rank + step) % ranks"},
    "it attends to later blocks, and not to earlier ones: causal is the other way round":
        {"origin <= rank": "origin >= rank"},
    "only the last block's result comes back: merge it with those before": {"merge(found, mine)": "mine"},
    "each step sends the rank's own keys and values once more, not those that have come":
        {"    for step in range(ranks):": "    own = keys\n    for step in range(ranks):",
         SEND: "for one in own]"},
    "what has come is never looked at: each step computes with the rank's own keys": {"keys = coming": "pass"},
    "keys come with the values of another rank: those of the rank itself":
        {"attend(q, *keys,": "attend(q, keys[0], v,"},
})  # fmt: skip
CASES = [
    {"causal": False, "dtype": "float64", "contiguous": True, "seed": 1},
    {"causal": True, "dtype": "float64", "contiguous": True, "seed": 2},
    {"causal": True, "dtype": "float32", "contiguous": False, "seed": 3},
]
Pair = tuple[torch.Tensor, torch.Tensor]


@exercise(OFFICIAL, CASES, title="A ring that computes while it waits", difficulty=3, minutes=30, ranks=(3, 2, 1))
def ring_attention(case: dict[str, Any], ring_attention: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``ring_attention(q, k, v, causal, attend, merge)``."""
    rank, ranks, causal = dist.get_rank(), dist.get_world_size(), case["causal"]
    q, k, v = _parts(case, rank)
    attended = 0

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Pair:
        nonlocal attended
        attended += 1
        seen.mark()
        words = "attend reads tensors into which a block is being received: take new ones for it"
        refuse(any(_one_place(new, old) for new in seen.coming() for old in (k, v)), words)
        return _attend(q, k, v, causal)

    with leaves(q=q, k=k, v=v), watched(allowed=("send", "recv")) as seen:
        result = ring_attention(q, k, v, causal, attend, _merge)
    pair = isinstance(result, tuple | list) and len(result) == 2
    refuse(not pair, "the result is not a pair, (out, lse)", measured=kind_of(result))
    block, expected = k.nbytes + v.nbytes, rank + 1 if causal else ranks
    if same(result, _truth(case, rank, ranks)):  # (else it is told what is wrong with the numbers)
        words = "attend is not called once for each block that this rank's queries may see"
        words += ", and for no later one" if causal else ""
        refuse(attended != expected, words, measured=attended, expected=expected)
        wrong = [call["peer"] for call in seen.calls if call["name"] == "send" and call["peer"] != (rank + 1) % ranks]
        refuse(wrong, "a message goes to another rank than the next one in the ring", measured=wrong and wrong[0])
        words = f"more than {ranks - 1} blocks of keys and values are sent (in bytes)"
        refuse(seen.sent() > (ranks - 1) * block, words, measured=seen.sent(), expected=(ranks - 1) * block)
        _overlap(seen.calls, attended, block)
    return {"out": result[0], "lse": result[1]}


def _overlap(calls: list[dict[str, Any]], attended: int, block: int) -> None:
    """While a rank attends to a block (not the last one), the next one is coming, and no more than that."""
    for i in range(attended):
        coming = [call for call in calls if call["name"] == "recv" and call["ready"] <= i < call["waited"]]
        bytes_, told = sum(call["bytes"] for call in coming), f"during call {i + 1} of {attended} of attend"
        words = f"{told}, the next block is not on its way: begin to receive it before attend, and wait afterwards"
        refuse(bytes_ < block and i < attended - 1, f"{words} (in bytes)", measured=bytes_, expected=block)
        words = f"{told}, more than one block is on its way: there is room for two, this and the next (in bytes)"
        refuse(bytes_ > block, words, measured=bytes_, expected=block)
    early = [call for call in calls if call["name"] == "send" and call["waited"] == call["ready"] < attended]
    refuse(early, "waits until a message is sent, and calls attend only then: begin to send, attend, and wait after it")
    words = "a tensor is written to while it is being sent: receive into another one"
    refuse(any(call["changed"] for call in calls), words)


def _one_place(*tensors: torch.Tensor) -> bool:
    """Whether two tensors share memory."""
    lengths = [sum((n - 1) * step for n, step in zip(one.shape, one.stride(), strict=True)) for one in tensors]
    ends = [one.data_ptr() + length * one.itemsize for one, length in zip(tensors, lengths, strict=True)]
    return max(one.data_ptr() for one in tensors) <= min(ends)


def _truth(case: dict[str, Any], rank: int, ranks: int) -> Any:
    found, q = None, _parts(case, rank)[0]
    for origin in range(rank + 1 if case["causal"] else ranks):
        found = _merge(found, _attend(q, *_parts(case, origin)[1:], case["causal"] and origin == rank))
    return found


def _parts(case: dict[str, Any], rank: int) -> list[torch.Tensor]:
    """Queries, keys and values of a rank; four heads of queries share two of keys and values."""
    torch.manual_seed(case["seed"])
    batch, tokens, size = torch.randint(1, 4, (3,)).tolist()
    torch.manual_seed(1000 * case["seed"] + rank)
    shapes = [(batch, tokens + 1, heads, size + 1) for heads in (4, 2, 2)]
    parts = [torch.randn(shape, dtype=getattr(torch, case["dtype"])).transpose(1, 2) for shape in shapes]
    return [part.contiguous() for part in parts] if case["contiguous"] else parts


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Pair:
    k, v = (one.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for one in (k, v))
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def _merge(one: Pair | None, other: Pair) -> Pair:
    if one is None:
        return other
    lse = torch.logaddexp(one[1], other[1])
    return one[0] * (one[1] - lse).exp()[..., None] + other[0] * (other[1] - lse).exp()[..., None], lse
