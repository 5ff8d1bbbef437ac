"""The exercises of this lab: the parts of a transformer, each cut over ranks. Each holds a contract.

linear.py      linear_layers: one matrix by columns, the next by rows
heads.py       parallel_attention: each rank has some heads
vocabulary.py  vocabulary_loss: scores are never gathered
sequence.py    sequence_norm: each rank normalises its own tokens
parts.py       what they share
"""

from __future__ import annotations

from typing import Any

from checks.contracts import judge
from checks.framework import exercise
from checks.tensor_parallelism import heads, linear, sequence, vocabulary


@exercise(title="Columns, then rows", difficulty=2, minutes=30)
def linear_layers(column_linear: Any, row_linear: Any) -> dict[str, Any]:
    """Judge ``column_linear(x, weight, bias)`` and ``row_linear(part, weight, bias)``, one behind the other."""
    return judge(linear.CONTRACT, column_linear, row_linear)


@exercise(title="Attention by heads", difficulty=2, minutes=30)
def parallel_attention(ParallelAttention: Any) -> dict[str, Any]:
    """Judge the class ``ParallelAttention(qkv, out, heads)``, which is called with x."""
    return judge(heads.CONTRACT, ParallelAttention)


@exercise(title="A loss that never gathers the scores", difficulty=3, minutes=30)
def vocabulary_loss(vocabulary_loss: Any) -> dict[str, Any]:
    """Judge ``vocabulary_loss(scores, targets, start)``, forward and backward."""
    return judge(vocabulary.CONTRACT, vocabulary_loss)


@exercise(title="A norm on its own part of the sequence", difficulty=3, minutes=30)
def sequence_norm(sequence_norm: Any) -> dict[str, Any]:
    """Judge ``sequence_norm(x, weight, eps)``, forward and backward."""
    return judge(sequence.CONTRACT, sequence_norm)
