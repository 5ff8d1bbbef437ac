"""In the rank: pieces of a chain that are checkpointed, with dropout, and several tensors as inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from checks.contracts import Case, gpus

WIDTH = 192
BEFORE = 2**-10  # each number of the gradients that the first piece has already: not much larger than the new ones


class Piece(nn.Module):
    """Two layers with dropout; the other tensors are weights of a sum, and a mask."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.up, self.down, self.p = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), p

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        inner = torch.tanh(self.up(x))
        inner = dropout(inner, self.p) if self.p else inner
        for one in others:
            inner = inner * one
        return x + self.down(torch.sigmoid(inner))


def made(case: Case, pieces: int) -> tuple[list[Piece], list[Tensor]]:
    """Pieces and tensors on the GPU, the same whenever they are asked for."""
    kept = torch.get_rng_state()
    torch.manual_seed(case["seed"])
    chain = [Piece(case["dropout"]) for _ in range(pieces)]
    tensors = [torch.randn(case["rows"], WIDTH)]
    tensors += [torch.randn(4 * WIDTH) for _ in range(case["tensors"] - 1)]
    torch.set_rng_state(kept)
    device = torch.device("simgpu", case["gpu"])
    for piece in chain:
        gpus.put(piece, device)
    for one in chain[0].parameters():  # of a backward pass before this one
        one.grad = torch.full_like(one, BEFORE)
    there = [one.to(device) for one in tensors]
    asked = {"all": slice(None), "the second only": slice(1, 2), "all but the last": slice(0, -1)}[
        case["gradients for"]
    ]
    for one in there[asked]:
        one.requires_grad_()
    return chain, there


def counted(piece: Piece, counts: list[int], number: int) -> Callable[..., Tensor]:
    """A function that is no module, and counts how often it runs."""

    def function(*tensors: Any) -> Tensor:
        counts[number] += 1
        return piece(*tensors)

    return function


def gradients(chain: list[Piece], tensors: list[Tensor]) -> dict[str, Tensor | None]:
    """By name; None where there is none."""
    named = {f"piece {i}'s {name}": p for i, piece in enumerate(chain) for name, p in piece.named_parameters()}
    named |= {f"tensor {i}": one for i, one in enumerate(tensors)}
    return {name: None if one.grad is None else gpus.plain(one.grad)["value"] for name, one in named.items()}
