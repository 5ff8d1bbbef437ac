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
_TCP = (
    "assumed: half of a TCP round trip of 100 µs in a quiet data centre. In a public cloud it can be more: "
    "E. Jones (Network Latencies in the Data Center, 2021) found round trips of 500 µs at the 80th percentile"
)


def _pcie(generation: int, gigatransfers: float, year: int) -> Link:
    """PCI Express with 16 lanes: each lane carries 128 bits of data in every 130 bits on the wire."""
    source = f"PCI-SIG, PCI Express Base Specification {generation}.0: {gigatransfers:g} GT/s, 128b/130b, 16 lanes"
    speed = gigatransfers * 1e9 * 128 / 130 * 16 / 8
    return Link(f"PCIe {generation}.0 x16", 5.7e-6, speed, year, source, _NCCL)


def _nvlink(generation: int, gpu: str, links: int, year: int, source: str) -> Link:
    """NVLink 2, 3 and 4 all carry 25 GB/s per link and direction; newer GPUs have more links."""
    source = f"{source}: {links} links × 25 GB/s per direction = {links * 50} GB/s in both directions together"
    return Link(f"NVLink {generation} ({gpu})", 3.4e-6, links * 25e9, year, source, _NCCL)


def _network(name: str, gigabits: float, alpha_s: float, year: int, source: str, alpha_source: str) -> Link:
    return Link(name, alpha_s, gigabits * 1e9 / 8, year, source, alpha_source, in_bits=True)


DDR5 = Link(
    "DDR5-4800, one channel",
    0.1e-6,
    4800e6 * 8,
    2020,
    "JEDEC JESD79-5: 4800 million transfers per second × 8 bytes. A copy reads and writes: half of it",
    "assumed: 100 ns, the usual order of one access to main memory",
    full_duplex=False,
)
PCIE3 = _pcie(3, 8, 2010)
PCIE4 = _pcie(4, 16, 2017)
PCIE5 = _pcie(5, 32, 2019)
NVLINK2 = _nvlink(2, "V100", 6, 2017, "NVIDIA Tesla V100 GPU Architecture white paper")
NVLINK3 = _nvlink(3, "A100", 12, 2020, "NVIDIA A100 Tensor Core GPU Architecture white paper")
NVLINK4 = _nvlink(4, "H100", 18, 2022, "NVIDIA H100 Tensor Core GPU Architecture white paper")
ETHERNET_10 = _network("Ethernet 10 Gbit/s", 10, 50e-6, 2002, "IEEE 802.3ae-2002", _TCP)
ETHERNET_25 = _network("Ethernet 25 Gbit/s", 25, 50e-6, 2016, "IEEE 802.3by-2016", _TCP)
ETHERNET_100 = _network("Ethernet 100 Gbit/s", 100, 50e-6, 2010, "IEEE 802.3ba-2010", _TCP)
_IBTA = "InfiniBand roadmap (IBTA):"
_ADAPTER = "; the adapter alone: below 0.6 µs (ConnectX-6, Lenovo product guide LP1195)"
INFINIBAND_HDR = _network(
    "InfiniBand HDR 200 Gbit/s", 200, 14e-6, 2018, f"{_IBTA} HDR, 4 lanes; NVIDIA ConnectX-6", _NCCL + _ADAPTER
)
INFINIBAND_NDR = _network(
    "InfiniBand NDR 400 Gbit/s", 400, 14e-6, 2022, f"{_IBTA} NDR, 4 lanes; NVIDIA ConnectX-7", _NCCL
)

ALL: tuple[Link, ...] = (
    *(ETHERNET_10, ETHERNET_25, ETHERNET_100, PCIE3, INFINIBAND_HDR, PCIE4),
    *(DDR5, INFINIBAND_NDR, PCIE5, NVLINK2, NVLINK3, NVLINK4),
)
"""Every link above, from the slowest to the fastest."""
