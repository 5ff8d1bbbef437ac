"""An all-reduce of MPI over the memory of a torch tensor: mpiexec -n 2 python mpi_all_reduce.py"""

import torch
from mpi4py import MPI

world = MPI.COMM_WORLD
tensor = torch.full((3,), 10.0 + world.rank)
before, address = tensor.tolist(), tensor.data_ptr()

world.Allreduce(MPI.IN_PLACE, tensor, op=MPI.SUM)  # capital A: the memory itself
copied = world.allreduce(world.rank)  # small a: any Python object, pickled

print(f"{before} became {tensor.tolist()}, same memory: {tensor.data_ptr() == address}; ranks add up to {copied}")
