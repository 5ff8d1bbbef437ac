"""A drawn state of a training, copied and compared to the last list and tensor; and which state a file holds."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any


def draw_state(seed: int) -> dict[str, Any]:
    """Tensors of several types, one strided, one empty, two that are tied; lists and numbers."""
    import torch

    dice = random.Random(seed)
    rows = dice.randint(3, 9)
    wide = torch.full((rows, 4), float(dice.randint(1, 50)))
    model = {"w": wide.t(), "tied": wide.t(), "half": torch.full((rows,), 0.5).bfloat16(), "none": torch.empty(0, 2)}
    adam = [{"step": torch.tensor(float(dice.randint(1, 9))), "mean": torch.ones(rows, 2)} for _ in range(2)]
    numbers = {0: {"step": torch.arange(rows)}, 3: {"step": torch.tensor(rows)}}  # by number, as an optimizer has it
    return {
        "model": model,
        "adam": adam,
        "numbers": numbers,
        "done": {"step": dice.randint(1, 99), "epochs": [1, 2]},
        "rates": [0.1, 0.2],
    }


def copied(value: Any) -> Any:
    """With memory of its own, all the way down."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {name: copied(one) for name, one in value.items()}
    return [copied(one) for one in value] if isinstance(value, list) else value


def train_on(value: Any) -> None:
    """A step of training: all that can be changed in place is."""
    import torch

    if isinstance(value, torch.Tensor):
        value.add_(1)
    elif isinstance(value, dict):
        for name, one in value.items():
            if isinstance(one, int):
                value[name] = one + 1
            train_on(one)
    elif isinstance(value, list):
        for one in value:
            train_on(one)
        if value and not isinstance(value[0], dict):
            value.append(0)


def differs(one: Any, other: Any, path: str = "state") -> str:
    """The first place where two states differ; "" if there is none."""
    import torch

    if isinstance(other, torch.Tensor):
        same = isinstance(one, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
        return "" if same else path
    if isinstance(other, dict):
        if not isinstance(one, dict) or one.keys() != other.keys():
            return path
        return next((found for k in other if (found := differs(one[k], other[k], f"{path}[{k!r}]"))), "")
    if isinstance(other, list):
        if not isinstance(one, list) or len(one) != len(other):
            return path
        pairs = zip(one, other, strict=True)
        return next((found for n, (a, b) in enumerate(pairs) if (found := differs(a, b, f"{path}[{n}]"))), "")
    return "" if type(one) is type(other) and one == other else path


def look(path: Path, states: dict[str, Any]) -> dict[str, str]:
    """Which of these states a file holds, or "nothing", "half", "another"; and where it differs from the first."""
    import torch

    if not path.exists():
        return {"file": "nothing", "place": ""}
    try:
        found = torch.load(path)
    except Exception:
        return {"file": "half", "place": ""}
    file = next((name for name, state in states.items() if not differs(found, state)), "another")
    return {"file": file, "place": differs(found, next(iter(states.values())))}


def tensors_of(state: Any) -> list[Any]:
    """All tensors in it."""
    import torch
    from torch.utils._pytree import tree_leaves

    return [one for one in tree_leaves(state) if isinstance(one, torch.Tensor)]
