"""Says who each process is, in MPI's words: mpiexec -n 4 python mpi_words.py"""

from mpi4py import MPI

world = MPI.COMM_WORLD
node = world.Split_type(MPI.COMM_TYPE_SHARED)  # those that can share memory with me: my node
print(f"rank {world.rank} of {world.size}, local rank {node.rank} of {node.size}", flush=True)
