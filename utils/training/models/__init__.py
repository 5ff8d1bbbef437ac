"""Models of the course, and what is known of their size.

sizes.py    their shapes, and how many parameters there are (no torch)
alexnet.py  AlexNet in one column, and in the two columns of 2012, each on a device of its own
resnet.py   ResNet-50, which can be cut into pieces
gpt.py      GPT-2 and larger ones of its kind, which can be cut into pieces too
llama.py    Llama 3: 1, 8 and 70 billion parameters

Torch is imported when one of the networks is first asked for, so that sizes stay cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from utils.training.models.sizes import (
    BYTES_PER_FP32,
    DEEPSEEK_V3,
    GPT2_SMALL,
    GPT_1B,
    GPT_7B,
    LLAMA_1B,
    LLAMA_8B,
    LLAMA_70B,
    MIXTRAL_8X7B,
    QWEN3_30B,
    QWEN3_235B,
    RESNET50_GRADIENT_BYTES,
    RESNET50_PARAMETERS,
    GPTConfig,
    LlamaConfig,
    MoEConfig,
    gpt_parameter_count,
    llama_parameter_count,
)

if TYPE_CHECKING:
    from utils.training.models.alexnet import AlexNet, TwoColumnAlexNet
    from utils.training.models.gpt import GPT
    from utils.training.models.llama import Llama
    from utils.training.models.resnet import ResNet50

__all__ = [
    "BYTES_PER_FP32",
    "DEEPSEEK_V3",
    "GPT",
    "GPT2_SMALL",
    "GPT_1B",
    "GPT_7B",
    "LLAMA_1B",
    "LLAMA_8B",
    "LLAMA_70B",
    "MIXTRAL_8X7B",
    "QWEN3_30B",
    "QWEN3_235B",
    "RESNET50_GRADIENT_BYTES",
    "RESNET50_PARAMETERS",
    "AlexNet",
    "GPTConfig",
    "Llama",
    "LlamaConfig",
    "MoEConfig",
    "ResNet50",
    "TwoColumnAlexNet",
    "gpt_parameter_count",
    "llama_parameter_count",
]

_NETWORKS = {"AlexNet": "alexnet", "TwoColumnAlexNet": "alexnet", "ResNet50": "resnet", "GPT": "gpt", "Llama": "llama"}


def __getattr__(name: str) -> type:
    """A network by its name: imports its module, and with it torch, on first use."""
    if name not in _NETWORKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_NETWORKS[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_NETWORKS})
