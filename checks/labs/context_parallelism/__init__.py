"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

merging.py  merge: attention over several blocks of keys, out of what each of them gives
ring.py     ring_attention: keys and values travel, while a rank computes
balance.py  zigzag: which tokens a rank has, and the way back
cuts.py     training_step: labels, positions and the loss of a sequence that is cut
"""

from __future__ import annotations

from typing import Any

from checks.engine import judge
from checks.engine.exercises import exercise
from checks.labs.context_parallelism import balance, cuts, merging, ring


@exercise(title="One result out of several blocks", difficulty=2, minutes=20, official=merging.OFFICIAL)
def merge(merge: Any) -> dict[str, Any]:
    """Judge ``merge(blocks)``."""
    return judge(merging.OFFICIAL, merging.play, merging.CASES, merge, timeout=30)


@exercise(title="A ring that computes while it waits", difficulty=3, minutes=30, official=ring.OFFICIAL)
def ring_attention(ring_attention: Any) -> dict[str, Any]:
    """Judge ``ring_attention(q, k, v, causal, attend, merge)``."""
    return judge(ring.OFFICIAL, ring.play, ring.CASES, ring_attention, ranks=(3, 2, 1))


@exercise(title="Zig-zag, there and back", difficulty=2, minutes=20, official=balance.OFFICIAL)
def zigzag(my_tokens: Any, together: Any) -> dict[str, Any]:
    """Judge ``my_tokens(lengths, rank, ranks)`` and ``together(parts, lengths)``."""
    return judge(balance.OFFICIAL, balance.play, balance.draw, my_tokens, together, timeout=30)


@exercise(title="Labels, angles and the loss of a cut sequence", difficulty=2, minutes=25, official=cuts.OFFICIAL)
def training_step(training_step: Any) -> dict[str, Any]:
    """Judge ``training_step(model, tokens, prompts, places)``."""
    return judge(cuts.OFFICIAL, cuts.play, cuts.CASES, training_step, ranks=(3, 2, 1))
