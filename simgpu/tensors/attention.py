"""Attention on a simulated GPU: the fused kernel, as on CUDA. And RMSNorm, recurrent cells, and a loss.

``scaled_dot_product_attention`` chooses a kernel by asking the backend in C++, which a backend written in Python
cannot answer. So the choice is made here: flash attention, and plain matrix products where there is dropout or where
the mask needs a gradient. CUDA's flash kernels also take fewer heads of keys and values than of queries, and values
whose width is another one (``simgpu.tensors.fused``).
"""

from __future__ import annotations

from typing import Any

import torch

from simgpu._torch import packet_of
from simgpu.tensors import fused
from simgpu.tensors.fused import OWN
from simgpu.tensors.operators import run
from simgpu.tensors.schemas import operator_of
from simgpu.tensors.tensor import SimTensor

aten = torch.ops.aten


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention over ``[batch, heads, tokens, width]``; see torch.nn.functional.scaled_dot_product_attention."""
    fits = query.dim() == key.dim() == value.dim() == 4 and dropout_p == 0.0 and key.shape[:3] == value.shape[:3]
    fits = fits and 0 not in (*query.shape, *key.shape)  # of the fused kernels only that of CUDA takes those
    plain = fits and query.shape[-1] == value.shape[-1] and query.shape[:2] == key.shape[:2]
    grouped = fits and query.shape[0] == key.shape[0] and (query.shape[1] == key.shape[1] or enable_gqa)
    mask_is_data = attn_mask is None or not attn_mask.requires_grad
    if attn_mask is None and (
        (plain and not isinstance(query, SimTensor)) or (not plain and grouped and _divides(query, key))
    ):
        # Of DTensors torch knows how to share out CUDA's operator (context_parallel, heads of tensor parallelism).
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
    if plain and mask_is_data:
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, float("-inf"))
        out, _ = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
        )
        return out
    out, _ = aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    return out


def _divides(query: torch.Tensor, key: torch.Tensor) -> bool:
    return query.shape[-1] == key.shape[-1] and query.shape[1] % max(1, key.shape[1]) == 0


def _as_on_the_cpu(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Equally many heads, equally wide: the CPU's kernel takes no others."""
    return query.shape[1] == key.shape[1] and query.shape[-1] == value.shape[-1]


def flash(func: Any, args: tuple, kwargs: dict) -> tuple:
    """CUDA's flash attention: the CPU's gives the same result and the same logarithms of sums."""
    values = operator_of(func).values(args, kwargs)
    query, key, value, causal, scale = (values[name] for name in ("query", "key", "value", "is_causal", "scale"))
    state = torch.empty((), dtype=torch.int64, device="cpu")  # of random numbers, and of other things nobody reads
    if 0 in (*query.shape, *key.shape):  # which end the CPU's kernel by a division, and so the process
        sums = query.new_zeros(query.shape[:3], dtype=torch.float32)
        return torch.zeros_like(query), sums, None, None, query.shape[2], key.shape[2], state, state, None
    if _as_on_the_cpu(query, key, value):
        out, sums = run(fused.flash.default, (query, key, value, 0.0, causal), {"scale": scale})
    else:
        scale = scale or query.shape[-1] ** -0.5
        out, sums = run(OWN.flash_attention.default, (query, key, value, causal, scale), {})
    return out, sums, None, None, query.shape[2], key.shape[2], state, state, None


def flash_backward(func: Any, args: tuple, kwargs: dict) -> tuple:
    """Likewise."""
    values = operator_of(func).values(args, kwargs)
    names = ("grad_out", "query", "key", "value", "out", "logsumexp")
    asked = tuple(values[name] for name in names)
    query, key, value = asked[1:4]
    if 0 in (*query.shape, *key.shape):
        return tuple(torch.zeros_like(tensor) for tensor in (query, key, value))
    if _as_on_the_cpu(query, key, value):
        return run(fused.flash_backward.default, (*asked, 0.0, values["is_causal"]), {"scale": values.get("scale")})
    scale = values.get("scale") or query.shape[-1] ** -0.5
    return run(OWN.flash_attention_backward.default, (*asked, values["is_causal"], scale), {})


def rms_norm(
    x: torch.Tensor, shape: list[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """One kernel, as on CUDA; see torch.nn.functional.rms_norm."""
    return aten._fused_rms_norm(x, shape, weight, eps)[0]


def fused_rms_norm(func: Any, args: tuple, kwargs: dict) -> tuple:
    """CUDA's fused kernel and its backward, of which the CPU has none."""
    return run(getattr(OWN, packet_of(func).__name__[1:]).default, args, kwargs)


def lstm_cell(
    from_input: torch.Tensor,
    from_hidden: torch.Tensor,
    cell: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One step of an LSTM. CUDA has a fused kernel, and the CPU has none: here are its parts."""
    gates = _sum(from_input, from_hidden, input_bias, hidden_bias)
    enter, forget, candidate, out = gates.chunk(4, 1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
    return out.sigmoid() * cell.tanh(), cell, gates


def gru_cell(
    from_input: torch.Tensor,
    from_hidden: torch.Tensor,
    hidden: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of a GRU, likewise."""
    gates = _sum(from_input, input_bias)
    reset_i, keep_i, new_i = gates.chunk(3, 1)
    reset_h, keep_h, new_h = _sum(from_hidden, hidden_bias).chunk(3, 1)
    new = (new_i + (reset_i + reset_h).sigmoid() * new_h).tanh()
    return (hidden - new) * (keep_i + keep_h).sigmoid() + new, gates


def ctc_loss(scores: torch.Tensor, targets: torch.Tensor, *args: Any) -> torch.Tensor:
    """The lengths are read on the host, as for CUDA; torch would not do that for tensors of a class of its own."""
    return aten.ctc_loss.IntList(scores, targets, args[0].tolist(), args[1].tolist(), *args[2:])


def _sum(*parts: torch.Tensor | None) -> torch.Tensor:
    first, *rest = [part for part in parts if part is not None]
    for part in rest:
        first = first + part
    return first


def kernels() -> list[tuple[str, Any, str]]:
    """Operators, what runs for them, and the dispatcher's keys."""
    whole = {
        "scaled_dot_product_attention": scaled_dot_product_attention,
        "ctc_loss.Tensor": ctc_loss,
        "rms_norm": rms_norm,
    }
    keys = ("AutogradPrivateUse1", "PrivateUse1")
    return [
        *((name, kernel, key) for name, kernel in whole.items() for key in keys),
        ("_thnn_fused_lstm_cell", lstm_cell, "AutogradPrivateUse1"),
        ("_thnn_fused_gru_cell", gru_cell, "AutogradPrivateUse1"),
        ("_fused_rms_norm", fused.fused_rms_norm, "PrivateUse1"),  # so that autograd keeps it whole
    ]
