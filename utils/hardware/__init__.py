"""What this machine has, what hardware can do by its data sheets, and how long things take.

- ``machine``: processors, memory, GPUs, networks of this machine.
- ``links``: links with their sources, and the α–β formulas. ``timing``: the best of several rounds.
"""
