"""What GPUs can do, from their data sheets and from measurements (no torch needed).

- ``kind``: the fields, and how to read them;
- ``known``: V100, A100, H100, … with their sources, and ``gpu(name)``, which finds one, and ``link(name)``.
"""

from simgpu.hardware.kind import GIB, GPU
from simgpu.hardware.known import A100, A100_40GB, ALL, B200, CPU, H100, H200, RTX_3090, RTX_4090, TOY, V100, gpu, link

__all__ = [
    "A100", "A100_40GB", "ALL", "B200", "CPU", "GIB", "GPU", "H100", "H200", "RTX_3090", "RTX_4090", "TOY", "V100",
    "gpu", "link",
]  # fmt: skip
