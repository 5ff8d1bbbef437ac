"""GPUs that can be simulated, from their data sheets (no torch needed), and how to find one by its name."""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from typing import Any

from simgpu.hardware.kind import GIB, GPU
from utils.hardware.links import ALL as LINKS
from utils.hardware.links import (
    DDR5,
    ETHERNET_25,
    INFINIBAND_EDR,
    INFINIBAND_HDR,
    INFINIBAND_NDR,
    NVLINK2,
    NVLINK3,
    NVLINK4,
    PCIE3,
    PCIE4,
    PCIE5,
    Link,
)

TERA = 1e12

_KERNEL = "kernel_s: assumed, the usual order of the shortest kernels in profiles"
_MAMF = "S. Bekman, Machine Learning Engineering, Maximum Achievable Matmul FLOPS (bf16, torch 2.6 and 2.7, 2025)"
_TORCH = "zzc0721/torch-performance-test-data, torch 2.7, 8192×8192,"


def _rates(**tera: float) -> dict[str, float]:
    """From TFLOP/s, as data sheets print them, to FLOP/s."""
    return {kind: rate * TERA for kind, rate in tera.items()}


_HOST: dict[str, Any] = {"pageable_bytes_per_s": 10e9, "pinning_bytes_per_s": 2.76e9}
"""Pageable: bandwidthTest, 10.0 GB/s to an A100 SXM 80GB. Pinning: cudaHostAlloc of 32 MB, rapidsai/dask-cuda issue 106
(2020). Both belong to the host, and were measured on one each."""
_OLD_HOST: dict[str, Any] = {**_HOST, "pageable_bytes_per_s": 5.5e9}
"""rapidsai/dask-cuda pull request 98 (2019): 5 to 6 GB/s over PCIe 3."""
_FITTED = "fitted to training steps that others measured, rows with `calibrates` in benchmarks/published.py"
_UNALIGNED_ON_HOPPER = 3.0
"""Derived, not measured. Hopper's products of warp groups want aligned rows. Without them its multiprocessors run the
A100's kernels: half of 0.7 of the A100's peak (GPT-2's vocabulary of 50,257 against 50,304), times 132 multiprocessors
for 108 and 1.83 GHz for 1.41, are a third of what aligned products reach here. (Measured since, on an H200: below.)"""

V100 = GPU(
    name="V100 SXM2 32GB",
    year=2018,
    memory_bytes=32 * GIB,
    memory_bytes_per_s=900e9,
    flops=_rates(fp64=7.8, fp32=15.7, fp16=125),
    achievable_flops=0.5,
    achievable_bandwidth=0.88,
    nvlink=NVLINK2,
    host=PCIE3,
    kernel_s=2e-6,
    source="NVIDIA A100 Tensor Core GPU Architecture white paper (2020), the V100 column of its table of data center "
    "GPUs; the V100 is of 2017, with 32 GB of 2018",
    achievable_source=f"{_FITTED}: products on tensor cores BERT in fp16, fp32 ResNet-50; bandwidth: copies, "
    f"paranumal.com, Rough-n-Ready Roofline: V100 edition (2018): 790 of 900 GB/s; {_KERNEL}",
    achievable_fp32=0.91,
    multiprocessors=80,
    nics_per_gpu=0.5,
    network=INFINIBAND_EDR,
    **_OLD_HOST,
)
A100 = GPU(
    name="A100 SXM 80GB",
    year=2020,
    memory_bytes=80 * GIB,
    memory_bytes_per_s=2039e9,
    flops=_rates(fp64=19.5, fp32=19.5, tf32=156, bf16=312, fp16=312),
    achievable_flops=0.7,
    achievable_bandwidth=0.75,
    nvlink=NVLINK3,
    host=PCIE4,
    kernel_s=2e-6,
    source="NVIDIA A100 Tensor Core GPU data sheet (2021), column A100 80GB SXM",
    achievable_source=f"{_FITTED}: products BERT in fp16 and GPT-2 in fp32, bandwidth ResNet-50 (large products alone "
    f"reach 0.87 of the peak, {_MAMF}; copies 0.89 of the bandwidth, xytpai/nvbench); {_KERNEL}",
    achievable_fp32=0.95,
    multiprocessors=108,
    nics_per_gpu=1,
    network=INFINIBAND_HDR,
    **_HOST,
)
H100 = GPU(
    name="H100 SXM",
    year=2022,
    memory_bytes=80 * GIB,
    memory_bytes_per_s=3350e9,
    flops=_rates(fp64=67, fp32=67, tf32=494.5, bf16=989.5, fp16=989.5, fp8=1979),
    achievable_flops=0.53,
    achievable_bandwidth=0.79,
    nvlink=NVLINK4,
    host=PCIE5,
    kernel_s=2e-6,
    source="NVIDIA H100 Tensor Core GPU data sheet (2023), column H100 SXM; tensor core rates are half of those "
    "printed there, which are with sparsity",
    achievable_source=f"{_FITTED}: products BERT in fp16, bandwidth ResNet-50 (large products alone reach 0.80 of the "
    f"peak, {_MAMF}; copies 0.87, aigatech/vpbenchmarking); fp32: assumed; {_KERNEL}",
    achievable_fp32=0.9,
    multiprocessors=132,
    unaligned=_UNALIGNED_ON_HOPPER,
    nics_per_gpu=1,
    network=INFINIBAND_NDR,
    **_HOST,
)
H200 = GPU(
    name="H200 SXM",
    year=2024,
    memory_bytes=141 * GIB,
    memory_bytes_per_s=4800e9,
    flops=dict(H100.flops),
    achievable_flops=0.8,
    achievable_bandwidth=0.79,
    nvlink=NVLINK4,
    host=PCIE5,
    kernel_s=2e-6,
    source="NVIDIA H200 Tensor Core GPU data sheet (2024), column H200 SXM: an H100 with other memory; tensor core "
    "rates are half of those printed there, which are with sparsity",
    achievable_source="products, with and without aligned rows: fitted to GPT 1.3B in bf16 on an H200 with torch 2.11 "
    f"(2026, benchmarks/results/simgpu_vs_h200.txt); bandwidth and fp32: assumed, as the H100's; {_KERNEL}",
    achievable_fp32=0.9,
    multiprocessors=132,
    unaligned=6.5,
    nics_per_gpu=1,
    network=INFINIBAND_NDR,
    **_HOST,
)
RTX_4090 = GPU(
    name="RTX 4090",
    year=2022,
    memory_bytes=24 * GIB,
    memory_bytes_per_s=1008e9,
    flops=_rates(fp64=1.29, fp32=82.6, tf32=82.6, bf16=165.2, fp16=165.2, fp8=330.3),
    achievable_flops=0.76,
    achievable_bandwidth=0.91,
    nvlink=None,
    host=PCIE4,
    kernel_s=2e-6,
    source="NVIDIA Ada GPU Architecture white paper 2.1 (2022), appendix A, rows with FP32 accumulate; fp64 is 1/64 of "
    "fp32 there",
    achievable_source=f"{_FITTED}: products BERT in fp16; fp32: {_TORCH} 53 of 82.6 TFLOP/s; bandwidth: copies, "
    f"krrishnarraj/clpeak issue 106 (2023): 921 of 1008 GB/s; {_KERNEL}",
    achievable_fp32=0.64,
    multiprocessors=128,
    peer_access=False,
    nics_per_gpu=0.25,
    network=ETHERNET_25,
    **_HOST,
)
RTX_3090 = GPU(
    name="RTX 3090",
    year=2020,
    memory_bytes=24 * GIB,
    memory_bytes_per_s=936e9,
    flops=_rates(fp64=0.556, fp32=35.6, tf32=35.6, bf16=71.2, fp16=71.2),
    achievable_flops=0.97,
    achievable_bandwidth=0.92,
    nvlink=None,
    host=PCIE4,
    kernel_s=2e-6,
    source="NVIDIA Ampere GA102 GPU Architecture white paper (2021), GeForce RTX 3090, rows with FP32 accumulate",
    achievable_source=f"{_FITTED}: products ViT-Base; bandwidth ResNet-50 in channels last (the card runs faster than "
    f"the clock of the white paper); {_KERNEL}",
    multiprocessors=82,
    peer_access=False,
    nics_per_gpu=0.25,
    network=ETHERNET_25,
    **_HOST,
)
A100_40GB = replace(
    A100,
    name="A100 SXM 40GB",
    memory_bytes=40 * GIB,
    memory_bytes_per_s=1555e9,
    source="NVIDIA A100 Tensor Core GPU data sheet (2021), column A100 40GB SXM",
)
_CHANNELS = 8
CPU = GPU(
    name="CPU",
    year=2023,
    memory_bytes=256 * GIB,
    memory_bytes_per_s=_CHANNELS * DDR5.bytes_per_s,
    flops=_rates(fp64=2.56, fp32=5.12),
    achievable_flops=0.7,
    achievable_bandwidth=0.8,
    nvlink=None,
    host=replace(
        DDR5,
        name=f"DDR5-4800, {_CHANNELS} channels, copy",
        bytes_per_s=_CHANNELS * DDR5.bytes_per_s / 2,
        source=f"{DDR5.source}; {_CHANNELS} channels",
    ),
    kernel_s=2e-6,
    source="assumed, no product: 64 cores at 2.5 GHz, two fused multiply-adds of 256 bits per cycle and core (32 FLOP "
    f"in fp32), {_CHANNELS} channels of DDR5-4800",
    achievable_source="assumed, all three; many libraries need about 2 µs for the smallest operation on a CPU",
)
TOY = GPU(
    name="toy",
    year=2026,
    memory_bytes=16 * GIB,
    memory_bytes_per_s=1e12,
    flops=_rates(fp64=10, fp32=10, tf32=10, bf16=10, fp16=10, fp8=10),
    achievable_flops=1.0,
    achievable_bandwidth=1.0,
    nvlink=Link("toy link", 10e-6, 10e9, 2026, "invented: round numbers to check by hand", "invented"),
    host=Link("toy host link", 10e-6, 10e9, 2026, "invented: round numbers to check by hand", "invented"),
    kernel_s=0.0,
    source="invented: round numbers to check by hand",
    achievable_source="invented: a GPU that always reaches its peak",
)

ALL: tuple[GPU, ...] = (V100, A100_40GB, A100, H100, H200, RTX_3090, RTX_4090, CPU, TOY)
"""Every entry above. The last two are no products."""


def _plain(name: str) -> str:
    """A name without what people write in different ways: case, spaces, hyphens, and the maker's words."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.sub(r"^(nvidia)?(tesla|geforce)?", "", plain)


_ALIASES = {
    V100: ("V100", "V100 SXM2", "V100 SXM", "V100 32GB"),
    A100: ("A100", "A100 SXM", "A100 SXM4", "A100 80GB", "A100 80GB SXM", "A100 SXM4 80GB"),
    H100: ("H100", "H100 SXM5", "H100 80GB", "H100 SXM 80GB", "H100 80GB HBM3"),
    H200: ("H200", "H200 SXM5", "H200 141GB", "H200 SXM 141GB"),
    A100_40GB: ("A100 40GB", "A100 SXM4 40GB"),
    RTX_3090: ("3090",),
    RTX_4090: ("4090",),
}
_BY_NAME = {_plain(name): entry for entry in ALL for name in (entry.name, *_ALIASES.get(entry, ()))}


def gpu(name: str | GPU) -> GPU:
    """The GPU with this name. Case, spaces and hyphens do not matter: "h100-sxm", "H100", "NVIDIA H100 80GB HBM3".

    Raises:
        ValueError: if there is none; the sentence suggests the nearest name and lists all.
    """
    if isinstance(name, GPU):
        return name
    found = _BY_NAME.get(_plain(name))
    if found is None:
        near = difflib.get_close_matches(_plain(name), _BY_NAME, n=1, cutoff=0.5)
        hint = f"Did you mean {_BY_NAME[near[0]].name!r}? " if near else ""
        raise ValueError(f"There is no GPU called {name!r} here. {hint}Known: {', '.join(g.name for g in ALL)}.")
    return found


def link(name: str | Link) -> Link:
    """The link with this name, or the only one whose name begins so: "InfiniBand NDR". Case does not matter.

    Raises:
        ValueError: there is none (the sentence suggests the nearest name and lists all), or several (it lists those).
    """
    if isinstance(name, Link):
        return name
    begun = [one for one in LINKS if one.name.lower().startswith(name.lower())]
    whole_words = [one for one in begun if f"{one.name} ".lower().startswith(f"{name} ".lower())]
    found = whole_words or begun  # "Ethernet 10" is not "Ethernet 100 Gbit/s"
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"{name!r} may be any of {', '.join(one.name for one in found)}: say which.")
    names = [one.name for one in LINKS]
    near = difflib.get_close_matches(name, names, 1, 0.3)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"there is no link called {name!r}.{hint} Known: {', '.join(names)}")
