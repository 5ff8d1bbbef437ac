"""What this machine has, and what hardware can do by its data sheets.

- ``machine``: processors, memory, GPUs, networks of this machine; ``nvml``: its NVIDIA GPUs, asked without CUDA.
- ``links``: links with their sources, and the α–β formulas.
"""
