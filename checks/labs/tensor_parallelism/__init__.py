"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

columns.py     linear_layers: one matrix by columns, the next by rows
heads.py       parallel_attention: each rank has some heads
sequence.py    sequence_norm: each rank normalises its own tokens
plans.py       whole_model: torch's own layers, by a plan
passes.py      what they share: how f and g go wrong, a layer in two steps of training
"""

from __future__ import annotations

from typing import Any

from checks.engine import judge
from checks.engine.exercises import exercise
from checks.labs.tensor_parallelism import columns, heads, plans, sequence


@exercise(title="Columns, then rows", difficulty=2, minutes=30, official=columns.OFFICIAL)
def linear_layers(column_linear: Any, row_linear: Any) -> dict[str, Any]:
    """Judge ``column_linear(x, weight, bias)`` and ``row_linear(part, weight, bias)``, one behind the other."""
    return judge(columns.OFFICIAL, columns.play, columns.CASES, column_linear, row_linear, ranks=(3, 2))


@exercise(title="Attention by heads", difficulty=2, minutes=30, official=heads.OFFICIAL)
def parallel_attention(ParallelAttention: Any) -> dict[str, Any]:
    """Judge the class ``ParallelAttention(qkv, out, heads)``, which is called with x."""
    return judge(heads.OFFICIAL, heads.play, heads.CASES, ParallelAttention, ranks=(2, 3))


@exercise(title="A norm on its own part of the sequence", difficulty=3, minutes=30, official=sequence.OFFICIAL)
def sequence_norm(sequence_norm: Any) -> dict[str, Any]:
    """Judge ``sequence_norm(x, weight, eps)``, forward and backward."""
    return judge(sequence.OFFICIAL, sequence.play, sequence.CASES, sequence_norm, ranks=(4, 2))


@exercise(title="A plan for a whole Llama", difficulty=3, minutes=30, official=plans.OFFICIAL)
def whole_model(cut: Any) -> dict[str, Any]:
    """Judge ``cut(model, mesh)``, which changes the model in its place."""
    return judge(plans.OFFICIAL, plans.play, plans.CASES, cut, ranks=(2, 4))
