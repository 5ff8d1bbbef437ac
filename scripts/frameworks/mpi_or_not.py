"""Adds up 1 + rank with Horovod or with mpi4py, and says which libraries of MPI this process has loaded.

horovodrun -np 2 --gloo python mpi_or_not.py horovod
mpiexec -n 2 python mpi_or_not.py mpi4py
"""

import sys
from pathlib import Path

if sys.argv[1] == "horovod":
    import horovod.torch as hvd
    import torch

    hvd.init()
    rank, total = hvd.rank(), int(hvd.allreduce(torch.tensor([1.0 + hvd.rank()]), op=hvd.Sum))
else:
    from mpi4py import MPI

    rank, total = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.allreduce(1 + MPI.COMM_WORLD.rank)

files = {Path(line.split()[-1]).name for line in Path("/proc/self/maps").read_text().splitlines()}  # (Linux)
mpi = sorted(name.split(".")[0] for name in files if name.startswith("libmpi"))
if rank == 0:
    print(f"{sys.argv[1]}: the ranks add up to {total}; loaded of MPI: {', '.join(mpi) or 'nothing'}", flush=True)
