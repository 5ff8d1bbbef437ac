"""What GPUs can do: their data sheets as data (no torch needed).

How to read the numbers:

- **FLOP/s are dense peaks.** Data sheets since 2020 print the double of it, "with sparsity": half of the numbers
  of a matrix must be zero for that, which is not the case in ordinary training. Here are the other numbers.
- **Which units?** "fp32" is the rate of the ordinary cores. "tf32", "bf16", "fp16" and "fp8" are rates of the
  tensor cores, which multiply matrices and add up in fp32. "fp64" is the best that a matrix product gets: tensor
  cores on the A100 and later, ordinary cores before that and on the RTX 4090.
- **GB or GiB?** Memory is built in powers of two: the "80 GB" of an H100 are 80 GiB (80·2³⁰ bytes), and
  ``memory_bytes`` says so. A program sees a little less, because the driver keeps some: torch reports a
  ``total_memory`` of 79.2 GiB on an H100, 139.8 GiB on an H200 and 31.7 GiB on a V100. Bandwidths are in GB/s of
  10⁹ bytes.
- **A peak is not reached.** ``achievable_flops`` and ``achievable_bandwidth`` say which share large operations get.
  They were measured by others, on one machine each, and mostly in bf16 or fp16: take them as a rough guide.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from utils.hardware.links import DDR5, NVLINK2, NVLINK3, NVLINK4, PCIE3, PCIE4, PCIE5, Link

TERA = 1e12
GIB = 2**30

# What torch calls a data type, and what data sheets call it. Anything else (integers, bool) counts as fp32.
_KINDS = {
    **{"float64": "fp64", "double": "fp64", "float32": "fp32", "float": "fp32"},
    **{"bfloat16": "bf16", "float16": "fp16", "half": "fp16"},
    **{"float8_e4m3fn": "fp8", "float8_e5m2": "fp8"},
}
# Where to look when the hardware lacks a kind.
_FALLBACK = {"fp8": "bf16"}
_COUNTED_AS_FP32 = re.compile(r"u?int\d*|long|short|bool|complex\d*")


@dataclass(frozen=True)
class GPU:
    """One kind of GPU (or whatever else computes).

    Args:
        name: what people call it, for example "H100 SXM".
        year: when it came out.
        memory_bytes: size of its memory, in bytes (see above: GB on a data sheet means GiB).
        memory_bytes_per_s: peak bandwidth of that memory, reads and writes together, in bytes per second.
        flops: dense peak in FLOP/s for "fp64", "fp32", "tf32", "bf16", "fp16", "fp8". A kind that the hardware
            does not have is absent: see ``peak_flops``.
        achievable_flops: share of the peak that large matrix products reach, above 0 and at most 1.
        achievable_bandwidth: share of the bandwidth that large copies reach, above 0 and at most 1.
        nvlink: link to other GPUs of the node, one direction; None: they talk through ``host``.
        host: link to the CPU's memory, one direction.
        kernel_s: the shortest time that one kernel takes on the device, in seconds, however little it does.
        source: where the data are from.
        achievable_source: where the two shares are from, and ``kernel_s``.
    """

    name: str
    year: int
    memory_bytes: int
    memory_bytes_per_s: float
    flops: Mapping[str, float] = field(hash=False)
    achievable_flops: float
    achievable_bandwidth: float
    nvlink: Link | None
    host: Link
    kernel_s: float
    source: str
    achievable_source: str

    def __post_init__(self) -> None:
        if "fp32" not in self.flops or min(self.flops.values()) <= 0:
            raise ValueError(f"{self.name}: the FLOP/s must be above 0, and those of fp32 are always needed")
        if self.memory_bytes <= 0 or self.memory_bytes_per_s <= 0 or self.kernel_s < 0:
            raise ValueError(f"{self.name}: memory and bandwidth must be above 0, and kernel_s at least 0")
        if not (0 < self.achievable_flops <= 1 and 0 < self.achievable_bandwidth <= 1):
            raise ValueError(f"{self.name}: the achievable shares must be above 0 and at most 1")

    @property
    def peer(self) -> Link:
        """The link to another GPU of the same node: NVLink, or else PCIe."""
        return self.nvlink or self.host

    def peak_flops(self, kind: str) -> float:
        """Dense peak in FLOP/s for a kind of number, with a fallback where the hardware has none.

        - "tf32", "bf16" and "fp16" fall back to fp32: a V100 has no bf16, so libraries convert and compute in fp32;
        - "fp8" falls back to bf16, and then to fp32;
        - integers and bool count as fp32.

        Args:
            kind: "fp32", "bf16", …, or the name of a torch dtype ("float32", "torch.bfloat16", "int64").

        Raises:
            ValueError: if nobody calls a number like this.
        """
        short = kind.removeprefix("torch.")
        short = _KINDS.get(short, short)
        if short in self.flops:
            return self.flops[short]
        if short not in {"fp64", "tf32", "bf16", "fp16", "fp8"} and not _COUNTED_AS_FP32.fullmatch(short):
            raise ValueError(f"{kind!r} is no kind of number: use fp64, fp32, tf32, bf16, fp16, fp8 or a torch dtype")
        return self.flops.get(_FALLBACK.get(short, "fp32"), self.flops["fp32"])

    def slower(self, factor: float) -> GPU:
        """The same GPU with its FLOP/s and its memory bandwidth divided by ``factor`` (at least 1)."""
        if factor < 1:
            raise ValueError(f"factor must be at least 1, not {factor:g}: 2 means half the speed")
        return replace(
            self,
            name=f"{self.name} at 1/{factor:g} speed",
            memory_bytes_per_s=self.memory_bytes_per_s / factor,
            flops={kind: rate / factor for kind, rate in self.flops.items()},
            source=f"{self.source}; made slower by hand",
        )

    def with_memory(self, memory_bytes: int) -> GPU:
        """The same GPU with ``memory_bytes`` bytes of memory."""
        return replace(
            self,
            name=f"{self.name} with {memory_bytes / GIB:.4g} GiB",
            memory_bytes=memory_bytes,
            source=f"{self.source}; memory changed by hand",
        )


# --- The data -----------------------------------------------------------------------------------------------

_KERNEL = "kernel_s: assumed, the usual order of the shortest kernels in profiles"
_MAMF = "S. Bekman, Machine Learning Engineering, Maximum Achievable Matmul FLOPS (bf16, torch 2.6 and 2.7, 2025)"
_TORCH = "zzc0721/torch-performance-test-data, torch 2.7, 8192×8192,"


def _rates(**tera: float) -> dict[str, float]:
    """From TFLOP/s, as data sheets print them, to FLOP/s."""
    return {kind: rate * TERA for kind, rate in tera.items()}


V100 = GPU(
    name="V100 SXM2 32GB",
    year=2018,
    memory_bytes=32 * GIB,
    memory_bytes_per_s=900e9,
    flops=_rates(fp64=7.8, fp32=15.7, fp16=125),
    achievable_flops=0.78,
    achievable_bandwidth=0.88,
    nvlink=NVLINK2,
    host=PCIE3,
    kernel_s=2e-6,
    source="NVIDIA A100 Tensor Core GPU Architecture white paper (2020), the V100 column of its table of data center "
    "GPUs; the V100 is of 2017, with 32 GB of 2018",
    achievable_source=f"products: {_TORCH} fp16 on a V100 SXM2 16GB (2026): 97.4 of 125 TFLOP/s; copies: "
    f"paranumal.com, Rough-n-Ready Roofline: V100 edition (2018): 790 of 900 GB/s on the PCIe card; {_KERNEL}",
)
A100 = GPU(
    name="A100 SXM 80GB",
    year=2020,
    memory_bytes=80 * GIB,
    memory_bytes_per_s=2039e9,
    flops=_rates(fp64=19.5, fp32=19.5, tf32=156, bf16=312, fp16=312),
    achievable_flops=0.87,
    achievable_bandwidth=0.89,
    nvlink=NVLINK3,
    host=PCIE4,
    kernel_s=2e-6,
    source="NVIDIA A100 Tensor Core GPU data sheet (2021), column A100 80GB SXM",
    achievable_source=f"products: {_MAMF}: 271.2 of 312 TFLOP/s; copies: xytpai/nvbench: 1380 of 1555 GB/s on the "
    f"A100 with 40 GB, the share is taken over; {_KERNEL}",
)
H100 = GPU(
    name="H100 SXM",
    year=2022,
    memory_bytes=80 * GIB,
    memory_bytes_per_s=3350e9,
    flops=_rates(fp64=67, fp32=67, tf32=494.5, bf16=989.5, fp16=989.5, fp8=1979),
    achievable_flops=0.80,
    achievable_bandwidth=0.87,
    nvlink=NVLINK4,
    host=PCIE5,
    kernel_s=2e-6,
    source="NVIDIA H100 Tensor Core GPU data sheet (2023), column H100 SXM; tensor core rates are half of those "
    "printed there, which are with sparsity",
    achievable_source=f"products: {_MAMF}: 794.5 of 989 TFLOP/s; copies: aigatech/vpbenchmarking (Voltage Park and "
    f"Georgia Tech): device to device 2903 of 3350 GB/s; {_KERNEL}",
)
H200 = GPU(
    name="H200 SXM",
    year=2024,
    memory_bytes=141 * GIB,
    memory_bytes_per_s=4800e9,
    flops=dict(H100.flops),
    achievable_flops=0.80,
    achievable_bandwidth=0.87,
    nvlink=NVLINK4,
    host=PCIE5,
    kernel_s=2e-6,
    source="NVIDIA H200 Tensor Core GPU data sheet (2024), column H200 SXM: an H100 with other memory; tensor core "
    "rates are half of those printed there, which are with sparsity",
    achievable_source=f"products: {_MAMF}: the H200 as the H100; copies: assumed, the share of the H100; {_KERNEL}",
)
RTX_4090 = GPU(
    name="RTX 4090",
    year=2022,
    memory_bytes=24 * GIB,
    memory_bytes_per_s=1008e9,
    flops=_rates(fp64=1.29, fp32=82.6, tf32=82.6, bf16=165.2, fp16=165.2, fp8=330.3),
    achievable_flops=0.97,
    achievable_bandwidth=0.91,
    nvlink=None,
    host=PCIE4,
    kernel_s=2e-6,
    source="NVIDIA Ada GPU Architecture white paper 2.1 (2022), appendix A, rows with FP32 accumulate; fp64 is 1/64 of "
    "fp32 there",
    achievable_source=f"products: {_TORCH} bf16 (2025): 160.2 of 165.2 TFLOP/s, because the card runs faster than the "
    "clock of the white paper (plain fp32: only 53 of 82.6); copies: krrishnarraj/clpeak issue 106 (2023): 921 of "
    f"1008 GB/s; {_KERNEL}",
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

ALL: tuple[GPU, ...] = (V100, A100, H100, H200, RTX_4090, CPU, TOY)
"""Every entry above. The last two are no products."""


# --- Finding one --------------------------------------------------------------------------------------------


def _plain(name: str) -> str:
    """A name without what people write in different ways: case, spaces, hyphens, and the maker's words."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.sub(r"^(nvidia)?(tesla|geforce)?", "", plain)


_ALIASES = {
    V100: ("V100", "V100 SXM2", "V100 SXM", "V100 32GB"),
    A100: ("A100", "A100 SXM", "A100 SXM4", "A100 80GB", "A100 80GB SXM", "A100 SXM4 80GB"),
    H100: ("H100", "H100 SXM5", "H100 80GB", "H100 SXM 80GB", "H100 80GB HBM3"),
    H200: ("H200", "H200 SXM5", "H200 141GB", "H200 SXM 141GB"),
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
