"""What others measured on several GPUs, with hardware, year and source. All of it is predicted, nothing fitted."""

from __future__ import annotations

from dataclasses import dataclass

from published import DDP, H100_2023, RESNET

from simgpu import gpu as kind_of_gpu
from simgpu.hardware import GPU

H100_96GB = kind_of_gpu("H100 500W")


@dataclass(frozen=True)
class ManyGPUs:
    """Training steps on several GPUs, one rank for each.

    Args:
        model: a name that ``many_gpus`` knows: a ResNet under DistributedDataParallel, an MPT or Llama
            under FSDP2.
        gpu: the simulated kind, or its name.
        nodes, per_node: how many nodes, and GPUs of each.
        batch: images or sequences of one GPU, at once.
        precision: "fp32", "tf32", "amp" (autocast to fp16), or "bf16" (parameters sharded in fp32, computed in bf16).
        rate: images (language models: tokens) of one GPU in a second.
        channels_last: layout of images.
        times: micro-batches of a step.
        checkpointing: what a Llama computes again in the backward pass.
        reserved_gib: the most that torch's caching allocator reserved.
        network: Gbit/s of each network card, and how many a node has; None: the simulated kind's own.
    """

    model: str
    gpu: str | GPU
    nodes: int
    per_node: int
    batch: int
    precision: str
    rate: float
    year: int
    source: str
    channels_last: bool = False
    times: int = 1
    network: tuple[float, int] | None = None
    checkpointing: str = "none"
    reserved_gib: float | None = None


FOUNDRY = "mosaicml/llm-foundry, scripts/train/benchmarking/README.md, torch 1.13 to 2.1"
FOUR_CARDS = (100.0, 4)
"""The network of PyTorch's own measurements of DistributedDataParallel."""
TITAN = "pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md"
TITAN_A100 = "pytorch/torchtitan, docs/performance.md of 2024-06: 64 A100"
NANOTRON = "huggingface/bench_cluster, llama-1B on 8 GPUs (logs nanotron/old_bench)"


def _titan(model: str, nodes: int, batch: int, rate: float, checkpointing: str, reserved: float) -> ManyGPUs:
    memory = {"checkpointing": checkpointing, "reserved_gib": reserved}
    return ManyGPUs(model, H100_96GB, nodes, 8, batch, "bf16", rate, 2024, TITAN, **memory)  # type: ignore[arg-type]


MANY_GPUS = (
    ManyGPUs("resnet50", "V100", 1, 8, 32, "fp32", 32 / 0.104, 2019, DDP),
    ManyGPUs("resnet50", "V100", 2, 8, 32, "fp32", 32 / 0.104, 2019, DDP, network=FOUR_CARDS),
    ManyGPUs("resnet101", "V100", 1, 2, 32, "fp32", 32 / 0.176, 2019, DDP),
    ManyGPUs("resnet101", "V100", 1, 8, 32, "fp32", 32 / 0.179, 2019, DDP),
    ManyGPUs("resnet101", "V100", 2, 8, 32, "fp32", 32 / 0.179, 2019, DDP, network=FOUR_CARDS),
    ManyGPUs("resnet50", "V100", 1, 8, 112, "fp32", 2855 / 8, 2021, RESNET),
    ManyGPUs("resnet50", "V100", 1, 8, 256, "amp", 8056 / 8, 2021, RESNET, channels_last=True),
    ManyGPUs("resnet50", "A100", 1, 8, 256, "tf32", 7248 / 8, 2021, RESNET),
    ManyGPUs("resnet50", "A100", 1, 8, 256, "amp", 16621 / 8, 2021, RESNET, channels_last=True),
    ManyGPUs("mpt 125m", "A100", 1, 8, 32, "bf16", 141_737, 2023, FOUNDRY, times=2),
    ManyGPUs("mpt 350m", "A100", 1, 8, 32, "bf16", 58_782, 2023, FOUNDRY, times=2),
    ManyGPUs("mpt 760m", "A100", 1, 8, 24, "bf16", 32_434, 2023, FOUNDRY, times=2),
    ManyGPUs("mpt 1b", "A100", 1, 8, 14, "bf16", 20_513, 2023, FOUNDRY, times=4),
    ManyGPUs("mpt 3b", "A100", 1, 8, 10, "bf16", 10_811, 2023, FOUNDRY, times=2),
    ManyGPUs("mpt 7b", "A100", 1, 8, 6, "bf16", 4_641, 2023, FOUNDRY, times=2),
    ManyGPUs("mpt 13b", "A100", 1, 8, 2, "bf16", 2_262, 2023, FOUNDRY, times=3),
    ManyGPUs("mpt 760m", H100_2023, 1, 8, 24, "bf16", 63_147, 2024, FOUNDRY, times=2),
    ManyGPUs("mpt 1b", H100_2023, 1, 8, 14, "bf16", 45_455, 2024, FOUNDRY),
    ManyGPUs("mpt 7b", H100_2023, 1, 8, 6, "bf16", 10_643, 2024, FOUNDRY),
    ManyGPUs("mpt 13b", H100_2023, 1, 8, 2, "bf16", 4_792, 2024, FOUNDRY),
    ManyGPUs("mpt 1b", H100_2023, 8, 8, 20, "bf16", 44_402, 2024, FOUNDRY),
    ManyGPUs("mpt 13b", H100_2023, 8, 8, 2, "bf16", 4_800, 2024, FOUNDRY),
    ManyGPUs("mpt 7b", H100_2023, 64, 8, 6, "bf16", 9_670, 2024, FOUNDRY),
    _titan("llama3 8b", 1, 2, 5_762, "selective", 82.4),
    _titan("llama3 8b", 16, 2, 5_605, "selective", 67.0),
    *(
        ManyGPUs(model, "A100", 8, 8, batch, "bf16", rate, 2024, TITAN_A100, checkpointing=checkpointing)
        for model, batch, rate, checkpointing in (
            ("llama3 8b", 1, 2_973, "selective"),
            ("llama3 70b", 1, 331, "full"),
            ("llama2 13b", 2, 2_162, "none"),
            ("llama2 13b", 2, 1_904, "selective"),
            ("llama2 70b", 1, 355, "selective"),
            ("llama2 70b", 2, 353, "full"),
        )
    ),
)


@dataclass(frozen=True)
class Layout:
    """A Llama of 1.1 billion parameters on eight GPUs of one node, 1,024 sequences of 4,096 tokens a step, in bf16.

    Args:
        data, tensor, pipeline: how the GPUs are shared out. (Model and training as in the program that started the
            runs, bench_cluster/create_configs.py: 24 layers, 2,048 wide, 4,096 hidden, 32 heads, GPT-2's words.)
        batch: sequences of a micro-batch.
        seconds: of a step.
        peak_mib: what torch allocated at most.
    """

    data: int
    tensor: int
    pipeline: int
    batch: int
    seconds: float
    peak_mib: float
    gpu: GPU = H100_2023
    year: int = 2024
    source: str = NANOTRON


LAYOUTS = (
    Layout(4, 2, 1, 8, 15.8, 43_651),
    Layout(2, 4, 1, 8, 18.9, 25_808),
    Layout(1, 4, 2, 8, 20.3, 25_707),
    Layout(2, 1, 4, 4, 22.0, 39_057),
    Layout(1, 1, 8, 4, 29.2, 44_034),
    Layout(1, 8, 1, 32, 92.1, 60_096),
)
WORST_LAYOUT = """The worst row is tensor parallel over all eight. Its log stands alone: five times slower than over
four, for the same products on parts half as wide. Nothing that is modelled does that."""
"""What is known of the largest error."""
