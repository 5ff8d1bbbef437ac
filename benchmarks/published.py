"""What others measured on real GPUs: one row for each figure, with its hardware, year and source.

Rows that the simulation is calibrated on say so (``calibrates``): they prove nothing. The others are predicted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simgpu import gpu as kind_of_gpu
from simgpu.hardware import GPU

NVIDIA = "NVIDIA/DeepLearningExamples, PyTorch"
RESNET = f"{NVIDIA}/Classification/ConvNets/resnet50v1.5/README.md and configs.yml, container 21.03"
BERT_1907 = f"{NVIDIA}/LanguageModeling/BERT/README.md of 2019-11, container 19.07"
BERT_2006 = f"{NVIDIA}/LanguageModeling/BERT/README.md of 2020-07, container 20.06"
TIMM = "huggingface/pytorch-image-models, results/benchmark-train-amp-{}-pt112-cu113-rtx3090.csv"
LAMBDA = "lambdal/deeplearning-benchmark, pytorch/pytorch-train-throughput-fp16.csv and -fp32.csv"
KUMAR = "sandeepkumar-skb/pytorch_experiments, torchvision_exp/README.md"
DDP = "pytorch/pytorch, benchmarks/distributed/ddp/README.md, torch 1.4"
COURSE = "a reproduction of A. Karpathy's build-nanogpt on an A100 with 40 GB, without torch.compile"
RASCHKA = "rasbt/LLMs-from-scratch, ch05/10_llm-training-speed/README.md, torch 2.6"
TIMM_INFERENCE = "huggingface/pytorch-image-models, results/benchmark-infer-amp-nchw-pt240-cu124-rtx4090.csv"
H100_2023 = replace(kind_of_gpu("H100"), name="H100, 2023", achievable_flops=0.52, achievable_attention=0.4)
"""With the libraries of 2023 (CUDA 11.8 to 12.1), which did not use all that Hopper's tensor cores can: products are
fitted to BERT; attention: FlashAttention-2, 370 of 989 TFLOP/s (Shah and others: FlashAttention-3, 2024, figure 5)."""


@dataclass(frozen=True)
class Step:
    """Training steps on one GPU, or (``infers``) forward passes without gradients.

    Args:
        model: a name that ``simgpu_vs_published`` knows, with what belongs to it.
        gpu: the simulated kind, with its memory in GiB if that differs.
        batch: images or sequences of one GPU.
        precision: "fp32", "tf32", "amp" (autocast to fp16), "fp16" or "bf16" (the whole model).
        rate: images or sequences (GPT: tokens) in a second; None: only memory was measured.
        channels_last: layout of images.
        peak_gib: what torch allocated or reserved at most, if that is known.
    """

    model: str
    gpu: str | GPU
    batch: int
    precision: str
    rate: float | None
    year: int
    source: str
    channels_last: bool = False
    peak_gib: float | None = None
    calibrates: str = ""
    infers: bool = False


STEPS = (
    Step("resnet50", "V100", 112, "fp32", 367, 2021, RESNET, calibrates="fp32"),
    Step("resnet50", "V100", 256, "amp", 1156, 2021, RESNET, channels_last=True),
    Step("resnet50", "A100", 256, "tf32", 938, 2021, RESNET),
    Step("resnet50", "A100", 256, "amp", 2470, 2021, RESNET, channels_last=True, calibrates="bandwidth"),
    Step("resnet50", "RTX 3090", 512, "amp", 826.1, 2022, TIMM.format("nchw")),
    Step("resnet101", "RTX 3090", 256, "amp", 569.0, 2022, TIMM.format("nchw")),
    Step("resnet152", "RTX 3090", 192, "amp", 370.1, 2022, TIMM.format("nchw")),
    Step("vgg16", "RTX 3090", 384, "amp", 465.4, 2022, TIMM.format("nchw")),
    Step("resnet50", "RTX 3090", 512, "amp", 1218.0, 2022, TIMM.format("nhwc"), True, calibrates="bandwidth"),
    Step("resnet101", "RTX 3090", 256, "amp", 747.9, 2022, TIMM.format("nhwc"), True),
    Step("resnet152", "RTX 3090", 192, "amp", 501.4, 2022, TIMM.format("nhwc"), True),
    Step("vgg16", "RTX 3090", 384, "amp", 546.1, 2022, TIMM.format("nhwc"), True),
    Step("vit-small", "RTX 3090", 384, "amp", 1052.9, 2022, TIMM.format("nchw")),
    Step("vit-base", "RTX 3090", 192, "amp", 390.9, 2022, TIMM.format("nchw"), calibrates="products"),
    Step("vit-large", "RTX 3090", 64, "amp", 117.1, 2022, TIMM.format("nchw")),
    Step("bert-large 128", "V100", 32, "fp32", 40.32, 2019, BERT_1907, calibrates="fp32"),
    Step("bert-large 128", "V100", 64, "fp16", 171.5, 2019, BERT_1907, calibrates="products"),
    Step("bert-large 512", "V100", 4, "fp32", 8.36, 2019, BERT_1907),
    Step("bert-large 512", "V100", 8, "fp16", 30.08, 2019, BERT_1907),
    Step("bert-large 128", "A100 40GB", 54, "tf32", 234, 2020, BERT_2006),
    Step("bert-large 128", "A100 40GB", 64, "fp16", 415, 2020, BERT_2006),
    Step("bert-large 512", "A100 40GB", 8, "tf32", 41, 2020, BERT_2006),
    Step("bert-large 512", "A100 40GB", 16, "fp16", 78, 2020, BERT_2006),
    Step("bert-large squad", "RTX 3090", 28, "fp16", 52, 2023, LAMBDA),
    Step("bert-large squad", "RTX 4090", 28, "fp16", 93, 2023, LAMBDA),
    Step("bert-large squad", "A100", 112, "fp16", 152, 2023, LAMBDA, calibrates="products"),
    Step("bert-large squad", H100_2023, 112, "fp16", 301, 2023, LAMBDA, calibrates="products"),
    Step("bert-large squad", "A100", 64, "tf32", 75, 2023, LAMBDA),
    Step("bert-large squad", H100_2023, 64, "tf32", 141, 2023, LAMBDA),
    Step("resnet50", "A100", 640, "tf32", 1066, 2023, LAMBDA),
    Step("resnet50", "A100", 1280, "amp", 1582, 2023, LAMBDA),
    Step("resnet50", H100_2023, 640, "tf32", 1753, 2023, LAMBDA),
    Step("resnet50", H100_2023, 1280, "amp", 2616, 2023, LAMBDA),
    Step("resnet50", "RTX 4090", 224, "tf32", 721, 2023, LAMBDA),
    Step("resnet50", "RTX 4090", 448, "amp", 1301, 2023, LAMBDA),
    Step("resnet50", "RTX 3090", 224, "tf32", 513, 2023, LAMBDA),
    Step("resnet50", "V100", 128, "fp32", 374, 2021, KUMAR),
    Step("resnet50", "V100", 128, "amp", 841, 2021, KUMAR),
    Step("resnet50", "V100", 128, "amp", 1154, 2021, KUMAR, channels_last=True),
    Step("resnet50", "V100", 32, "fp32", 329, 2019, DDP),
    Step("resnet101", "V100", 32, "fp32", 197, 2019, DDP),
    Step("gpt2 tied", "A100 40GB", 16, "fp32", 16384 / 1.030, 2024, COURSE, calibrates="fp32"),
    Step("gpt2 tied", "A100 40GB", 16, "tf32", 16384 / 0.354, 2024, COURSE),
    Step("gpt2 tied", "A100 40GB", 16, "amp", 16384 / 0.311, 2024, COURSE),
    Step("gpt2 by hand", "A100 40GB", 8, "fp32", 12_525, 2025, RASCHKA, peak_gib=26.26),
    Step("gpt2 by hand", "A100 40GB", 8, "tf32", 27_648, 2025, RASCHKA, peak_gib=26.24),
    Step("gpt2 by hand", "A100 40GB", 8, "bf16", 45_486, 2025, RASCHKA, peak_gib=13.79),
    Step("gpt2 layers", "A100 40GB", 8, "bf16", 55_256, 2025, RASCHKA, peak_gib=11.56),
    Step("gpt2 flash", "A100 40GB", 8, "bf16", 91_901, 2025, RASCHKA, peak_gib=5.90),
    *(
        Step(model, "RTX 4090", 1024, "amp", 1024 / seconds, 2024, TIMM_INFERENCE, calibrates=fitted, infers=True)
        for model, seconds, fitted in (
            ("vit-base", 0.3674, "products"),
            ("vit-large", 1.122, ""),
            ("resnet50", 0.2428, ""),
            ("convnext-base", 0.4887, ""),
        )
    ),
    Step("resnet50", "RTX 3090", 128, "fp32", None, 2023, "WSShiro/vramexp: allocated, card not said", peak_gib=10.44),
)


@dataclass(frozen=True)
class Collective:
    """A collective of nccl-tests, float, sum.

    Args:
        nodes, per_node: how many nodes, and GPUs of each.
        nbytes: size of the whole tensor.
        microseconds: time, out of place.
        network: Gbit/s of each network card, and how many a node has; None: the simulated kind's own.
    """

    gpu: str
    nodes: int
    per_node: int
    name: str
    nbytes: int
    microseconds: float
    year: int
    source: str
    network: tuple[float, int] | None = None
    calibrates: str = ""


def _sizes(hardware: tuple, year: int, source: str, times: dict[int, float], *rest: object) -> tuple[Collective, ...]:
    return tuple(Collective(*hardware, nbytes, time, year, source, *rest) for nbytes, time in times.items())


MIB = 2**20
_A100 = "microsoft/superbenchmark, nccl-bw of its tests: Azure ND A100 v4"
_H100 = "Azure/AI-benchmarking-guide, Azure_Results/ND_H100_v5_results.md, NCCL 2.18"
_V100 = "a blog's log of nccl-tests on 8 × V100 SXM2 16GB, hybrid cube mesh (2019)"
_AWS = "aws-samples/awsome-distributed-training, micro-benchmarks/nccl-tests/README.md"
_A3 = "a log of nccl-tests on 2 × GCP A3 Mega, 8 × 200 Gbit/s (2024)"
_KALAVAI = "Kalavai, Useful scripts, NGC 24.01: PCIe without access to each other"

COLLECTIVES = (
    *_sizes(*(("A100 40GB", 1, 8, "all-reduce"), 2021, _A100), {MIB: 74.8}, *(None, "start over NVLink 3")),
    *_sizes(
        *(("A100 40GB", 1, 8, "all-reduce"), 2021, _A100),
        {4 * MIB: 112, 16 * MIB: 226, 64 * MIB: 584.5, 256 * MIB: 2112, 1024 * MIB: 8159},
    ),
    *_sizes(
        *(("A100 40GB", 1, 8, "all-gather"), 2021, _A100),
        {MIB: 73, 4 * MIB: 100.7, 16 * MIB: 167.7, 64 * MIB: 379.7, 256 * MIB: 1192, 1024 * MIB: 4413},
    ),
    *_sizes(
        *(("A100 40GB", 1, 8, "reduce-scatter"), 2021, _A100),
        {MIB: 72.4, 4 * MIB: 108.9, 16 * MIB: 152.4},
    ),
    *_sizes(*(("A100 40GB", 1, 8, "broadcast"), 2021, _A100), {MIB: 76, 4 * MIB: 81.1, 16 * MIB: 143.1}),
    *_sizes(*(("H100", 1, 8, "all-reduce"), 2024, _H100), {MIB: 42}, *(None, "start over NVLink 4")),
    *_sizes(
        *(("H100", 1, 8, "all-reduce"), 2024, _H100),
        {4 * MIB: 57, 16 * MIB: 125.2, 64 * MIB: 324.6, 256 * MIB: 1109, 1024 * MIB: 4029, 8192 * MIB: 31391},
    ),
    *_sizes(
        *(("V100", 1, 8, "all-reduce"), 2019, _V100),
        {MIB: 89.3, 4 * MIB: 147.4, 16 * MIB: 324.1, 64 * MIB: 992.7, 128 * MIB: 1818.8},
    ),
    *_sizes(
        *(("H100", 2, 8, "all-reduce"), 2025, _AWS),
        {16 * MIB: 298.1, 64 * MIB: 601.5, 256 * MIB: 1468, 1024 * MIB: 4608, 8192 * MIB: 33605},
        (400, 8),
    ),
    *_sizes(
        *(("A100", 2, 8, "all-reduce"), 2025, _AWS),
        {16 * MIB: 1191.8, 64 * MIB: 2644.6, 256 * MIB: 7201.7, 1024 * MIB: 26217},
        (100, 4),
    ),
    *_sizes(
        *(("H100", 2, 8, "all-reduce"), 2024, _A3),
        {64 * MIB: 1261.6, 256 * MIB: 2360.9, 1024 * MIB: 6759, 8192 * MIB: 47535},
        (200, 8),
    ),
    *_sizes(
        *(("RTX 4090", 1, 2, "all-reduce"), 2025, _KALAVAI),
        {MIB: 300.6, 16 * MIB: 4559, 128 * MIB: 36154},
        *(None, "rings through the host"),
    ),
    *_sizes(*(("RTX 4090", 1, 4, "all-reduce"), 2025, _KALAVAI), {MIB: 642, 16 * MIB: 9782, 128 * MIB: 78219}),
)


@dataclass(frozen=True)
class Copy:
    """A large copy. ``kind``: "pinned", "pageable" (from the host), "peer" (GPU to GPU) or "own" (inside a GPU)."""

    gpu: str
    kind: str
    gb_per_s: float
    year: int
    source: str
    calibrates: str = ""


_BEKMAN = "S. Bekman, Machine Learning Engineering, network/README.md"
COPIES = (
    Copy("V100", "pinned", 12.15, 2017, "mpicbg-scicomp/gearshifft pull request 82, P100 on PCIe 3"),
    Copy("A100", "pinned", 25.7, 2023, "bandwidthTest on an A100 SXM 80GB"),
    Copy("H100", "pinned", 51, 2024, "Azure/AI-benchmarking-guide, ND H100 v5"),
    Copy("H200", "pinned", 55.4, 2026, _BEKMAN, "PCIe 5"),
    Copy("RTX 4090", "pinned", 23.9, 2026, "NVlabs/cuda-oxide pull request 976, 64 MiB"),
    Copy("A100", "pageable", 10.0, 2023, "bandwidthTest on an A100 SXM 80GB", "pageable"),
    Copy("V100", "pageable", 5.5, 2019, "rapidsai/dask-cuda pull request 98: 5 to 6", "pageable"),
    Copy("RTX 4090", "pageable", 12.9, 2026, "NVlabs/cuda-oxide pull request 976, 64 MiB"),
    Copy("A100", "peer", 273, 2023, "CUDA samples 12.4 on 8 × A100 SXM 80GB"),
    Copy("H200", "peer", 396.4, 2026, _BEKMAN),
    Copy("H100", "peer", 374, 2024, "NVIDIA/nccl issue 1264", "NVLink 4"),
    Copy("RTX 4090", "peer", 22.2, 2023, "p2pBandwidthLatencyTest, two cards, driver 525", "through the host"),
    Copy("RTX 3090", "peer", 11.3, 2023, "Puget Systems: p2pBandwidthLatencyTest, two cards, no bridge"),
    Copy("A100", "own", 1560, 2023, "CUDA samples 12.4 on 8 × A100 SXM 80GB"),
    Copy("H100", "own", 2495, 2024, "NVIDIA/nccl issue 1264"),
    Copy("RTX 4090", "own", 917, 2023, "p2pBandwidthLatencyTest, two cards, driver 525"),
)
