"""The real launchers on this machine, started from a cell or a test; whatever happens, no process is left.

- ``torchrun``: real torchrun agents, one for each pretended node; ``torchrun.elastic``: a picture of an elastic run.
- ``slurm``: a Slurm of virtual nodes. ``ray_here``: a Ray of this machine alone.
- ``frameworks``: the programs of scripts/frameworks/ with mpiexec, horovodrun, TensorFlow's roles.
- ``failures``: broken programs, and how each of their ranks ended.
- ``namespaces``: several hosts on this machine, each with a network card of its own.
- ``processes``: how helpers end what they have started. ``warm_process``: a python that need not import torch any more,
  and ``stand_in``, what a launcher sees of it.
- ``extras``: lectures whose packages are not installed.
"""
