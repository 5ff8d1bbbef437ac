"""What a link is: a latency α and a bandwidth in one direction; and the link that fits measured times best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Link:
    """One kind of connection between two places, in one direction.

    Args:
        name: what people call it, for example "NVLink 4 (H100)".
        alpha_s: α, the latency of one message, in seconds.
        bytes_per_s: peak bandwidth of ONE direction, in bytes per second.
        year: when the standard or product came out, or when it was measured.
        source: where the bandwidth is from.
        alpha_source: where the latency is from.
        in_bits: True if people quote this link in bits per second (networks).
        full_duplex: True if both directions run at full speed at the same time. Memory cannot do that: reads
            and writes share the bandwidth.
        family: "NVLink", "PCIe" or "network": which of NCCL's latencies count. "": none, α is all.
        share: part of the bandwidth that large copies reach.
        collective_share: the same for NCCL's rings. None: as ``share``.
        switch_bytes_per_s: size over time of a large all-reduce that the switch between the GPUs adds up; 0: it cannot.
        share_source: where the last three are from.
        channels: how many NCCL opens for a collective: over all of a GPU's links to the GPUs of its node, or over one
            network card. 0: not known.
    """

    name: str
    alpha_s: float
    bytes_per_s: float
    year: int
    source: str
    alpha_source: str = "assumed"
    in_bits: bool = False
    full_duplex: bool = True
    family: str = ""
    share: float = 1.0
    collective_share: float | None = None
    switch_bytes_per_s: float = 0.0
    share_source: str = "assumed"
    channels: int = 0

    def __post_init__(self) -> None:
        if self.alpha_s < 0 or self.bytes_per_s <= 0:
            raise ValueError(f"{self.name}: a link needs a latency of at least 0 and a bandwidth above 0")

    @property
    def beta_s_per_byte(self) -> float:
        """β, the time that each further byte costs, in seconds."""
        return 1.0 / self.bytes_per_s

    def for_copies(self) -> Link:
        """The link with the bandwidth that large copies reach as its peak."""
        return replace(self, bytes_per_s=self.bytes_per_s * self.share, share=1.0, collective_share=None)

    def for_collectives(self) -> Link:
        """The link with the bandwidth that rings reach as its peak."""
        share = self.share if self.collective_share is None else self.collective_share
        return replace(self, bytes_per_s=self.bytes_per_s * share, share=1.0, collective_share=None)

    @property
    def both_directions_bytes_per_s(self) -> float:
        """The two directions added up, as the data sheets of NVLink quote it, in bytes per second."""
        return (2.0 if self.full_duplex else 1.0) * self.bytes_per_s

    @property
    def speed(self) -> str:
        """The bandwidth of one direction as people quote it: "450 GB/s" or "25 Gbit/s"."""
        if self.in_bits:
            return f"{self.bytes_per_s * 8 / 1e9:.4g} Gbit/s"
        return f"{self.bytes_per_s / 1e9:.4g} GB/s"

    @property
    def label(self) -> str:
        """Name and bandwidth in bytes, for pictures: "Ethernet 25 Gbit/s: 3.125 GB/s each way"."""
        return f"{self.name}: {self.bytes_per_s / 1e9:.4g} GB/s {'each way' if self.full_duplex else 'in all'}"

    def shared_by(self, users: float) -> Link:
        """The link as one of several equal users sees it: the same latency, a part of the bandwidth."""
        return replace(self, bytes_per_s=self.bytes_per_s / max(1.0, users))


def fit(sizes: Sequence[float], times: Sequence[float], name: str = "measured here", year: int = 0) -> Link:
    """The link whose α + n·β is nearest to measured times (least squares of the RELATIVE error).

    Relative, because otherwise the largest messages alone would decide and α would be noise.

    Args:
        sizes: message sizes in bytes, at least two different ones.
        times: seconds each of them took.
    """
    import numpy as np

    n, t = np.asarray(sizes, dtype=float), np.asarray(times, dtype=float)
    if n.shape != t.shape or len(set(n.tolist())) < 2 or (t <= 0).any():
        raise ValueError("fit needs as many times as sizes, times above 0, and at least two different sizes")
    (alpha, beta), *_ = np.linalg.lstsq(np.stack([1 / t, n / t], axis=1), np.ones_like(t), rcond=None)
    if beta <= 0:
        raise ValueError("larger messages were not slower: measure larger ones, or more often")
    return Link(name, max(0.0, float(alpha)), 1.0 / float(beta), year, "measured", "measured")
