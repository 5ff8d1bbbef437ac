"""Links from data sheets and standards, each with its source.

The bandwidths are peaks; a real program gets less. Latencies are hardly ever in a data sheet: ``Link.alpha_source``
says where each one is from, or that it is assumed.
"""

from __future__ import annotations

from utils.hardware.links.link import Link

_NCCL = (
    "the latency per ring step (protocol Simple) that NCCL itself reckons with when it chooses an algorithm: "
    "NVLink 3.4 µs, PCIe 5.7 µs, network 14 µs (NVIDIA/nccl, src/graph/tuning.cc, table hwLat, as of 2025)"
)
_CHANNELS = {"PCIe": 2, "network": 2}
"""Of NCCL. Two are its least, which it takes over PCIe with one card; and 16 with eight cards: S. Jeaugey, NVIDIA/nccl
issue 689 (2022). NVLink 2: 12, as NCCL says of itself ("12 coll channels") in logs from V100, of 2020 and later. NVLink
3 and 4: 24, in logs from A100 and H100 of 2023 and later; NVIDIA's forum, thread 337991 (2025), counts 24 blocks of an
all-gather on an H100 (beside it a product that needs all 132 multiprocessors takes nearly twice as long)."""
_TCP = (
    "assumed: half of a TCP round trip of 100 µs in a quiet data centre. In a public cloud it can be more: "
    "E. Jones (Network Latencies in the Data Center, 2021) found round trips of 500 µs at the 80th percentile"
)


def _pcie(generation: int, gigatransfers: float, year: int, reached: float, where: str) -> Link:
    """PCI Express with 16 lanes: each lane carries 128 bits of data in every 130 bits on the wire.

    Args:
        reached: GB/s of a large copy from pinned memory, and ``where`` that was measured.
    """
    source = f"PCI-SIG, PCI Express Base Specification {generation}.0: {gigatransfers:g} GT/s, 128b/130b, 16 lanes"
    speed = gigatransfers * 1e9 * 128 / 130 * 16 / 8
    found = f"copies: {reached:g} GB/s, {where}; rings: assumed, the same"
    shares = {"family": "PCIe", "share": reached * 1e9 / speed, "share_source": found, "channels": _CHANNELS["PCIe"]}
    return Link(f"PCIe {generation}.0 x16", 5.7e-6, speed, year, source, _NCCL, **shares)


def _nvlink(
    generation: int,
    gpu: str,
    links: int,
    year: int,
    source: str,
    copy: float,
    ring: float,
    where: str,
    switch: float = 0,
    each: float = 25,
    channels: int = 24,
) -> Link:
    """A GPU's links together. NVLink 2, 3 and 4 carry 25 GB/s per link and direction, NVLink 5 carries 50.

    Args:
        copy: GB/s of a large copy from one GPU to another.
        ring: GB/s that nccl-tests calls bus bandwidth, of large all-reduces with rings.
        where: where both were measured.
        switch: GB/s, size over time, of large all-reduces in the switch; 0: it adds nothing up.
        each: GB/s of one link in one direction.
        channels: of NCCL.
    """
    speed = links * each
    source = f"{source}: {links} links × {each:g} GB/s per direction = {2 * speed:,g} GB/s in both directions together"
    shares = {"share": copy / speed, "collective_share": ring / speed, "switch_bytes_per_s": switch * 1e9}
    name = f"NVLink {generation} ({gpu})"
    known = {"family": "NVLink", "share_source": where, "channels": channels}
    return Link(name, 3.4e-6, speed * 1e9, year, source, _NCCL, **known, **shares)


def _network(name: str, gigabits: float, alpha_s: float, year: int, source: str, alpha_source: str) -> Link:
    speed = gigabits * 1e9 / 8
    known = {"family": "network", "share": 0.95, "channels": _CHANNELS["network"]}
    return Link(name, alpha_s, speed, year, source, alpha_source, in_bits=True, **known)


DDR5 = Link(
    "DDR5-4800, one channel",
    0.1e-6,
    4800e6 * 8,
    2020,
    "JEDEC JESD79-5: 4800 million transfers per second × 8 bytes. A copy reads and writes: half of it",
    "assumed: 100 ns, the usual order of one access to main memory",
    full_duplex=False,
)
PCIE3 = _pcie(3, 8, 2010, 12.2, "nvbandwidth's predecessor on a GeForce RTX 2080 Ti (posts of Anthony-Hoo, 2025)")
PCIE4 = _pcie(4, 16, 2017, 25.9, "NVIDIA/nvbandwidth README (2023)")
PCIE5 = _pcie(5, 32, 2019, 55.4, "S. Bekman, Machine Learning Engineering, 8 × H200 (2026)")
NVLINK2 = _nvlink(
    *(2, "V100", 6, 2017, "NVIDIA Tesla V100 GPU Architecture white paper", 140, 130),
    "rings: nccl-tests on 8 × V100 (2019); copies: assumed (two GPUs share only one or two of the links)",
    channels=12,
)
NVLINK3 = _nvlink(
    *(3, "A100", 12, 2020, "NVIDIA A100 Tensor Core GPU Architecture white paper", 275, 235),
    "copies: NVIDIA/nvbandwidth README (2023); rings: S. Bekman, Machine Learning Engineering (2022)",
)
NVLINK4 = _nvlink(
    *(4, "H100", 18, 2022, "NVIDIA H100 Tensor Core GPU Architecture white paper", 374, 365),
    "copies: NVIDIA/nccl issue 1264 (2024); rings and switch: S. Bekman, Machine Learning Engineering, 8 × H200 (2026)",
    switch=275,
)
NVLINK5 = _nvlink(
    *(5, "B200", 18, 2024, "NVIDIA Blackwell Architecture Technical Brief", 770, 730),
    "copies: Azure/AI-benchmarking-guide issue 7, GB200 (2025); rings: assumed, the share of NVLink 4",
    each=50,
)
ETHERNET_10 = _network("Ethernet 10 Gbit/s", 10, 50e-6, 2002, "IEEE 802.3ae-2002", _TCP)
ETHERNET_25 = _network("Ethernet 25 Gbit/s", 25, 50e-6, 2016, "IEEE 802.3by-2016", _TCP)
ETHERNET_100 = _network("Ethernet 100 Gbit/s", 100, 50e-6, 2010, "IEEE 802.3ba-2010", _TCP)
_IBTA = "InfiniBand roadmap (IBTA):"
_ADAPTER = "; the adapter alone: below 0.6 µs (ConnectX-6, Lenovo product guide LP1195)"
INFINIBAND_EDR = _network(
    "InfiniBand EDR 100 Gbit/s", 100, 14e-6, 2014, f"{_IBTA} EDR, 4 lanes; Mellanox ConnectX-4", _NCCL
)
INFINIBAND_HDR = _network(
    "InfiniBand HDR 200 Gbit/s", 200, 14e-6, 2018, f"{_IBTA} HDR, 4 lanes; NVIDIA ConnectX-6", _NCCL + _ADAPTER
)
INFINIBAND_NDR = _network(
    "InfiniBand NDR 400 Gbit/s", 400, 14e-6, 2022, f"{_IBTA} NDR, 4 lanes; NVIDIA ConnectX-7", _NCCL
)

ALL: tuple[Link, ...] = (
    *(ETHERNET_10, ETHERNET_25, ETHERNET_100, PCIE3, INFINIBAND_HDR, PCIE4),
    *(INFINIBAND_NDR, PCIE5, NVLINK2, NVLINK3, NVLINK4, NVLINK5),
)
"""Every link above between GPUs or machines, from the slowest to the fastest."""
