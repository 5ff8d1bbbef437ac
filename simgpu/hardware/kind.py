"""What one kind of GPU can do: the fields of a data sheet, and what programs get of it (no torch needed).

How to read the numbers is said in ``kinds.toml``, at the top.

A GPU of your own: ``simgpu.cluster(gpu=GPU(name=…, …))``, or ``dataclasses.replace(simgpu.gpu("H100"), …)``. Rates and
bandwidth stand in its data sheet. For the shares take those of the next of kin in ``known``; what large products and
copies reach alone is a little more than a training step gets. Typical are 0.7 to 0.8 for products, 0.4 to 0.7 for
attention (FlashAttention-2 to cuDNN 9), 0.75 to 0.9 for the bandwidth. What is left out is said below at each field.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from utils.hardware.links import INFINIBAND_NDR, Link

GIB = 2**30

THROUGH_THE_HOST, RINGS_THROUGH_IT = 0.85, 0.14
"""What is left of PCIe's bandwidth where GPUs have no access to each other, for copies and for NCCL's rings: each byte
is written to the host's memory and read again. Two RTX 4090: 22 GB/s (p2pBandwidthLatencyTest, 2023) and 3.7 GB/s
(nccl-tests, 2025); with one host and another NCCL's figure differs by a factor of two."""

FASTEST_CLOCK = 1.25
"""A card's clock over that of its data sheet, at most."""

# What torch calls a data type, and what data sheets call it. Anything else (integers, bool) counts as fp32.
_KINDS = {
    **{"float64": "fp64", "double": "fp64", "float32": "fp32", "float": "fp32"},
    **{"bfloat16": "bf16", "float16": "fp16", "half": "fp16"},
    **{"float8_e4m3fn": "fp8", "float8_e5m2": "fp8"},
}
# Where to look when the hardware lacks a kind.
_FALLBACK = {"fp8": "bf16"}
_COUNTED_AS_FP32 = re.compile(r"u?int\d*|long|short|bool|complex\d*")


def _short(kind: str) -> str:
    """A data sheet's word for a kind of number, from that or from the name of a torch dtype."""
    name = kind.removeprefix("torch.")
    return _KINDS.get(name, name)


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
        achievable_flops: share of their peak that products on the tensor cores reach in training, above 0; more than 1
            (at most 1.25) where cards run faster than the clock of their data sheet.
        achievable_bandwidth: share of the bandwidth that kernels reach in training, above 0 and at most 1.
        nvlink: link to other GPUs of the node, one direction; None: they talk through ``host``.
        host: link to the CPU's memory, one direction.
        kernel_s: what each kernel takes besides its work, in seconds: to begin, to end, to fill and to empty the GPU.
        source: where the data are from.
        achievable_source: where the shares are from, and ``kernel_s``.
        achievable_fp32: share of their peak that products on the ordinary cores reach; None: ``achievable_flops``.
        multiprocessors: how many streaming multiprocessors it has, over which a product's tiles are dealt; 0: products
            of every shape take the time of their operations.
        clock_hz: the fastest clock of these, in Hz: with their number, what kernels take that neither memory nor
            products limit. Some cards run faster than their data sheets say.
        unaligned: how many times slower its tensor cores multiply where rows begin at any multiple of 2 bytes (two-byte
            numbers, odd sides); half of that if they do at 4 or 8 bytes; rows at multiples of 16 bytes are fast.
        achievable_attention: share of their peak that fused attention reaches in long sequences with heads of 128;
            None: 0.9 of ``achievable_flops``.
        board_power: what the board may draw, in watts; 0: products are not limited by power.
        joules_per_flop: energy of one operation of large products in bf16 or fp16 (measured power over measured rate).
            0: as for ``board_power``.
        peer_access: can it read another GPU's memory over PCIe? Without it, copies between GPUs go through the host.
        pageable_bytes_per_s: what a copy between the GPU and the host's ordinary (pageable) memory reaches: the host
            copies it to or from pinned memory on the way.
        pinning_bytes_per_s: how fast the host can pin new memory.
        nics_per_gpu: network cards for each GPU of a node of these.
        network: what one such network card does.
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
    achievable_fp32: float | None = None
    multiprocessors: int = 0
    clock_hz: float = 1.98e9
    unaligned: float = 2.0
    achievable_attention: float | None = None
    board_power: float = 0.0
    joules_per_flop: float = 0.0
    peer_access: bool = True
    pageable_bytes_per_s: float = math.inf
    pinning_bytes_per_s: float = math.inf
    nics_per_gpu: float = 1
    network: Link = INFINIBAND_NDR

    def __post_init__(self) -> None:
        if "fp32" not in self.flops or min(self.flops.values()) <= 0:
            raise ValueError(f"{self.name}: the FLOP/s must be above 0, and those of fp32 are always needed")
        if self.memory_bytes <= 0 or self.memory_bytes_per_s <= 0 or self.kernel_s < 0:
            raise ValueError(f"{self.name}: memory and bandwidth must be above 0, and kernel_s at least 0")
        shares = (self.achievable_flops, self.achievable_bandwidth, self.achievable_fp32 or 1)
        if not (min(shares) > 0 and max(shares) <= FASTEST_CLOCK and self.achievable_bandwidth <= 1):
            raise ValueError(
                f"{self.name}: the achievable shares must be above 0, that of bandwidth at most 1, and those of FLOP/s "
                f"at most {FASTEST_CLOCK} (a card's clock over that of its data sheet)"
            )
        if min(self.pageable_bytes_per_s, self.pinning_bytes_per_s, self.nics_per_gpu) <= 0:
            raise ValueError(f"{self.name}: rates of the host and network cards must be above 0")

    @property
    def power_share(self) -> float:
        """The share of their peak at which products on the tensor cores draw the board's power, in every type.

        A type at half the rate needs twice the energy for each operation (measured on an H100: bf16 and TF32).
        """
        peak = max(self.flops.get("bf16", 0.0), self.flops.get("fp16", 0.0))
        limited = self.board_power and self.joules_per_flop and peak
        return self.board_power / (self.joules_per_flop * peak) if limited else math.inf

    @property
    def products_share(self) -> float:
        """The share of their peak that products on the tensor cores reach: what kernels reach, or power allows."""
        return min(self.achievable_flops, self.power_share)

    @property
    def attention_share(self) -> float:
        """The same for fused attention, in long sequences with heads of 128."""
        return min(self.achievable_attention or 0.9 * self.achievable_flops, self.power_share)

    @property
    def peer(self) -> Link:
        """The link to another GPU of the same node: NVLink, else PCIe, if need be through the host's memory."""
        if self.nvlink or self.peer_access:
            return self.nvlink or self.host
        return replace(
            self.host,
            name=f"{self.host.name} through the host",
            share=self.host.share * THROUGH_THE_HOST,
            collective_share=self.host.share * RINGS_THROUGH_IT,
        )

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
        short = _short(kind)
        if short in self.flops:
            return self.flops[short]
        if short not in {"fp64", "tf32", "bf16", "fp16", "fp8"} and not _COUNTED_AS_FP32.fullmatch(short):
            raise ValueError(f"{kind!r} is no kind of number: use fp64, fp32, tf32, bf16, fp16, fp8 or a torch dtype")
        return self.flops.get(_FALLBACK.get(short, "fp32"), self.flops["fp32"])

    def on_tensor_cores(self, kind: str) -> bool:
        """Do its tensor cores multiply this kind of number? (Those of fp64 count as ordinary cores here.)"""
        short = _short(kind)
        return short in {"tf32", "bf16", "fp16", "fp8"} and (short in self.flops or _FALLBACK.get(short) in self.flops)

    def with_memory(self, memory_bytes: int) -> GPU:
        """The same GPU with ``memory_bytes`` bytes of memory."""
        return replace(
            self,
            name=f"{self.name} with {memory_bytes / GIB:.4g} GiB",
            memory_bytes=memory_bytes,
            source=f"{self.source}; memory changed by hand",
        )
