"""What the exercises share: shapes of layers, drawn, and shards with their padding."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def draw_shapes(seed: int, ranks: int, padding: bool, one: bool = False) -> list[tuple[int, ...]]:
    """Of some parameters, one a single number, whose length together can be divided by ``ranks``, or cannot.

    Args:
        one: one parameter only.
    """
    rng = random.Random(seed)
    shapes: list[tuple[int, ...]] = [(rng.randint(2, 9), rng.randint(2, 9)), (rng.randint(1, 9),)]
    shapes += [tuple(rng.randint(1, 4) for _ in range(rng.randint(0, 3))) for _ in range(rng.randint(0, 3))]
    rng.shuffle(shapes)
    shapes.insert(seed % len(shapes), ())
    shapes = [] if one else shapes
    rest = -sum(_length(shape) for shape in shapes) % ranks
    more = rest + rng.randint(1, ranks - 1) if padding and ranks > 1 else rest
    return [*shapes, (more + ranks * rng.randint(1, 3),)]


def _length(shape: Sequence[int]) -> int:
    length = 1
    for size in shape:
        length *= size
    return length


def joined(tensors: Sequence[Tensor], ranks: int) -> Tensor:
    """All of them in one flat tensor, with zeros at its end so that it can be cut into equal shards."""
    import torch

    flat = [one.detach().flatten() for one in tensors]
    padding = -sum(one.numel() for one in flat) % ranks
    return torch.cat([*flat, flat[0].new_zeros(padding)])


def draw_gradients(parameters: Sequence[Any], seed: int) -> None:
    """Give each a gradient; that of a matrix may not lie in one piece."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    for number, one in enumerate(parameters):
        turned = one.dim() == 2 and number % 2 == seed % 2
        shape = one.shape[::-1] if turned else one.shape
        gradient = torch.randn(shape, generator=generator, dtype=torch.float64).to(one.dtype)
        one.grad = gradient.t() if turned else gradient
