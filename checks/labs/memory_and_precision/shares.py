"""Check of ``utilization``: MFU and HFU of training steps, some of which were measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from checks.engine import Reference, exercise, refuse
from checks.engine.plain import from_array, number, shorten

BLOCK, SCORES, HEAD = "matrices * width * inner", "2 * length * width", 'width * model["vocabulary"]'
AGAIN, NEEDED, TOLD = "again * forward", "3 * (model", "return needed / full, done / full"
OFFICIAL = Reference("memory_and_precision", "utilization", {
    "attention multiplies too: queries with keys, and shares with values": {SCORES: "0"},
    "attention has two products for each token, both with all tokens of its sequence, masked ones too":
        {SCORES: "length * width"},
    "attention's work grows with the length of a sequence, not with all tokens of the batch":
        {SCORES: "2 * tokens * width"},
    "the last layer is a matrix too": {HEAD: "0"},
    "a row of the table of tokens is looked up: only the last layer multiplies with so many numbers":
        {HEAD: f"2 * {HEAD}"},
    "heads of keys and values may be fewer than those of queries: then k and v are narrower": {
        'width * model["kv_heads"] // model["heads"]': "width"},
    "a gated layer has three matrices, another two": {'3 if model["gated"] else 2': "2"},
    "attention has four matrices: for q, k, v and its output":
        {"2 * width * (width + narrow)": "width * (width + 2 * narrow)"},
    "a multiplication and an addition are two operations": {"forward = 2 * tokens": "forward = tokens",
                                                            "head = 2 * tokens": "head = tokens"},
    "the backward pass computes as well, and twice as much as the forward pass": {NEEDED: "1 * (model"},
    "the backward pass computes two gradients, of the input and of the weights": {NEEDED: "2 * (model"},
    "a batch has sequences times length tokens": {"sequences * length": "sequences"},
    "all GPUs together have their peaks together": {"gpus * peak": "peak"},
    "what is computed again is no progress: MFU leaves it out": {TOLD: "return done / full, done / full"},
    "HFU counts what is computed again": {TOLD: "return needed / full, needed / full"},
    "only the forward pass of a block is computed again": {AGAIN: f"3 * {AGAIN}"},
    "only so many blocks are computed again, and not the last layer": {AGAIN: "(again > 0) * needed / 3"},
    "MFU comes first, then HFU": {TOLD: "return done / full, needed / full"},
    "a utilization is a share between 0 and 1, not a percentage": {"full = gpus": "full = 0.01 * gpus"},
})  # fmt: skip
GPT = {"layers": 12, "width": 768, "heads": 12, "kv_heads": 12, "inner": 3072, "gated": False, "vocabulary": 50257}
MODELS = {
    "GPT-2 small": GPT,
    "GPT 1.3B": GPT | {"layers": 24, "width": 2048, "heads": 16, "kv_heads": 16, "inner": 8192},
    "Llama 3.1 8B": {
        **{"layers": 32, "width": 4096, "heads": 32, "kv_heads": 8, "inner": 14336, "gated": True},
        "vocabulary": 128256,
    },
}
H100 = 989e12
CASES = [  # measured on an H200 (benchmarks/measured/h200.json, 2026) and on 8 H100 (torchtitan, 2024)
    {"model": "GPT-2 small", "sequences": 8, "length": 1024, "again": 0, "gpus": 1, "seconds": 0.0331, "peak": H100},
    {"model": "GPT 1.3B", "sequences": 4, "length": 2048, "again": 24, "gpus": 1, "seconds": 0.1929, "peak": H100},
    {"model": "Llama 3.1 8B", "sequences": 16, "length": 8192, "again": 0, "gpus": 8, "seconds": 2.843, "peak": H100},
    {"model": "Llama 3.1 8B", "sequences": 3, "length": 4096, "again": 5, "gpus": 2, "seconds": 1.1, "peak": 312e12},
]


@exercise(OFFICIAL, CASES, title="What share of the GPU", difficulty=2, minutes=20)
def utilization(case: dict[str, Any], utilization: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``utilization(model, sequences, length, again, gpus, seconds, peak)``, a pair of MFU and HFU."""
    names = "sequences", "length", "again", "gpus", "seconds", "peak"
    told = from_array(utilization(dict(MODELS[case["model"]]), *(case[name] for name in names)))
    fine = isinstance(told, tuple | list) and len(told) == 2
    shares = [number(from_array(one)) for one in told] if fine else [None]
    refuse(None in shares, "utilization returns two numbers, MFU and HFU", measured=shorten(told))
    return {"the MFU": shares[0], "the HFU": shares[1]}
