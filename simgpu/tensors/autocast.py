"""``torch.autocast("simgpu", dtype=torch.bfloat16)``: which operators compute in which precision.

The lists are CUDA's (torch's header ATen/autocast_mode.h; documentation: "CUDA Op-Specific Behavior", 2026). One thing
is left out: CUDA keeps the converted weights until the context ends; here they are converted at every use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from simgpu._torch import past_autocast, schema_of
from simgpu.tensors.schemas import tensors_in

LOWER_PRECISION = [
    "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "convolution", "prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv",
    "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "_scaled_dot_product_flash_attention", "scaled_dot_product_attention",
]  # fmt: skip
"""Computed in the autocast type: matrix products and convolutions."""

FP32 = [
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow", "softplus", "layer_norm", "native_layer_norm", "rms_norm", "group_norm", "frobenius_norm",
    "nuclear_norm", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d",
    "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss",
    "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss",
    "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp", "upsample_nearest1d",
    "_upsample_nearest_exact1d", "upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_nearest3d",
    "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d", "_upsample_bilinear2d_aa",
    "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa",
]  # fmt: skip
"""Computed in fp32: small numbers would be lost."""

FP32_RESULT = [
    "prod", "softmax", "log_softmax", "cumprod", "cumsum", "linalg_vector_norm", "linalg_matrix_norm", "sum", "norm",
]  # fmt: skip
"""Computed and returned in fp32, unless the caller asks for another type."""

WIDEST = [
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
    "scatter_add",
]  # fmt: skip
"""Computed in the widest type among the inputs."""


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        lowered = value.is_floating_point() and value.dtype is not torch.float64 and value.device.type == "simgpu"
        return value.to(dtype) if lowered else value
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(each, dtype) for each in value)
    return value


def _widest(values: tuple) -> torch.dtype:
    types = {t.dtype for t in tensors_in(values) if t.is_floating_point()}
    return torch.float32 if torch.float32 in types else torch.get_autocast_dtype("simgpu")


def _kernel(func: Any, policy: str) -> Any:
    takes_dtype = any(argument.name == "dtype" for argument in schema_of(func).arguments)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with past_autocast():
            if policy == "result" and takes_dtype:
                given = kwargs.get("dtype") is not None or any(isinstance(arg, torch.dtype) for arg in args)
                floating = args[0].is_floating_point() and args[0].dtype is not torch.float64
                return func(*args, **(kwargs if given or not floating else {**kwargs, "dtype": torch.float32}))
            if policy == "lower":
                dtype = torch.get_autocast_dtype("simgpu")
            else:
                dtype = _widest(args) if policy == "widest" else torch.float32
            return func(*_cast(args, dtype), **{name: _cast(value, dtype) for name, value in kwargs.items()})

    return kernel


def kernels() -> Iterator[tuple[Any, Any, str]]:
    """Operators, what runs for them under autocast, and the dispatcher's key. All others run as they are."""
    policies = {"lower": LOWER_PRECISION, "fp32": FP32, "result": FP32_RESULT, "widest": WIDEST}
    for policy, names in policies.items():
        for name in names:
            packet = getattr(torch.ops.aten, name)
            for overload in packet.overloads():
                func = getattr(packet, overload)
                arguments = schema_of(func).arguments
                if "out" not in overload and arguments and any("Tensor" in str(each.type) for each in arguments):
                    yield func, _kernel(func, policy), "AutocastPrivateUse1"
