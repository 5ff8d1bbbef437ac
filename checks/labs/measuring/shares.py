"""Check of ``utilization``: three shares of a peak."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from checks.engine import Reference, exercise, refuse
from checks.engine.plain import from_array, shorten

OFFICIAL = Reference("measuring", "utilization", {
    "parameters that are only looked up are counted": {"(parameters - embedding)": "parameters"},
    "attention is counted as if every token looked at all others: half of them": {"length / 2": "length"},
    "attention's half is taken twice": {"length / 2": "length / 4"},
    "the first share has attention in it, too": {"for work in (dense,": "for work in (whole,"},
    "2 operations for each parameter are the forward pass alone: with backward it is 6": {"dense = 6": "dense = 2"},
    "the third counts two more forward passes, not one": {"whole * 4 / 3": "whole * 5 / 3"},
    "the third counts the parameters' forward pass twice, and attention's once": {"whole * 4 / 3": "whole + dense / 3"},
    "the third is less than the second: recomputing is work that the hardware does, too":
        {"whole * 4 / 3": "whole * 3 / 4"},
    "the peak is that of one GPU, and the tokens are those of all": {"(gpus * peak)": "peak"},
    "the tokens are multiplied by the GPUs: they are already those of all":
        {"* tokens / (gpus * peak)": "* tokens * gpus / peak"},
    "the shares are in percent": {"work * tokens": "100 * work * tokens"},
})  # fmt: skip
PEAKS = (312e12, 989e12, 2250e12)


def draw(rng: random.Random, number: int) -> dict[str, Any]:
    """Llama 3.1 8B on eight H100 first."""
    if number == 0:
        return {"parameters": 8_030_261_248, "embedding": 525_336_576, "layers": 32, "width": 4096,
                "length": 8192, "tokens": 58_000, "gpus": 8, "peak": PEAKS[1]}  # fmt: skip
    return {
        "parameters": rng.randint(10**9, 10**12),
        "embedding": rng.randint(10**7, 5 * 10**8),
        "layers": rng.randint(8, 128),
        "width": 128 * rng.randint(8, 128),
        "length": 2 ** rng.randint(10, 17),
        "tokens": rng.randint(10**3, 10**6),
        "gpus": 2 ** rng.randint(0, 10),
        "peak": rng.choice(PEAKS),
    }


@exercise(OFFICIAL, draw, title="Utilization, by three conventions", difficulty=1, minutes=15, timeout=30)
def utilization(case: dict[str, Any], utilization: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``utilization(parameters, embedding, layers, width, length, tokens, gpus, peak)``."""
    found = from_array(utilization(**case))
    found = [from_array(one) for one in found] if isinstance(found, list | tuple) else found
    refuse(not isinstance(found, list) or len(found) != 3, "the result is not three numbers", measured=shorten(found))
    return {"the three shares": found}
