"""How long does it take to send data? The α–β model, and what the links of a cluster can do.

A message of n bytes over a link takes

    time = α + n·β        α: latency in seconds per message,   β = 1 / bandwidth: seconds per byte

This package is the only home of that formula and of the link data: the lectures, the simulated clusters and
the pictures all read from here. It needs neither torch nor numpy (only ``fit`` uses numpy).

- ``link``: what a link is, and the one that fits measured times;
- ``known``: the links of data sheets, with their sources;
- ``times``: how long messages and collectives take.

Two things are often mixed up, so this package is strict about them:

- **One direction or both.** Data sheets of NVLink add both directions together: the 900 GB/s of an H100 is
  450 GB/s out *and* 450 GB/s in, at the same time. ``Link.bytes_per_s`` is always one direction. Network
  speeds are sold per direction already.
- **Bits or bytes.** Networks are sold in bits per second (25 Gbit/s = 3.125 GB/s), everything inside a
  machine in bytes per second. ``Link.bytes_per_s`` is always bytes. 1 GB is 10⁹ bytes.
"""

from utils.hardware.links.known import (
    ALL,
    DDR5,
    ETHERNET_10,
    ETHERNET_25,
    ETHERNET_100,
    INFINIBAND_EDR,
    INFINIBAND_HDR,
    INFINIBAND_NDR,
    NVLINK2,
    NVLINK3,
    NVLINK4,
    NVLINK5,
    PCIE3,
    PCIE4,
    PCIE5,
)
from utils.hardware.links.link import Link, fit
from utils.hardware.links.times import (
    flat_ring_all_reduce,
    halving_all_reduce,
    hierarchical_all_reduce,
    mixed_ring_all_reduce,
    naive_all_reduce,
    point_to_point,
    ring_all_gather,
    ring_all_reduce,
    ring_all_reduce_bytes_per_rank,
    ring_reduce_scatter,
    tree_all_reduce,
)

__all__ = [
    "ALL",
    "DDR5",
    "ETHERNET_10",
    "ETHERNET_25",
    "ETHERNET_100",
    "INFINIBAND_EDR",
    "INFINIBAND_HDR",
    "INFINIBAND_NDR",
    "NVLINK2",
    "NVLINK3",
    "NVLINK4",
    "NVLINK5",
    "PCIE3",
    "PCIE4",
    "PCIE5",
    "Link",
    "fit",
    "flat_ring_all_reduce",
    "halving_all_reduce",
    "hierarchical_all_reduce",
    "mixed_ring_all_reduce",
    "naive_all_reduce",
    "point_to_point",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_all_reduce_bytes_per_rank",
    "ring_reduce_scatter",
    "tree_all_reduce",
]
