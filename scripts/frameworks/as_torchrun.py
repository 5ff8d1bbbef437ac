"""Runs a program for torchrun under mpiexec: MPI's words are put where torch looks for its own.

mpiexec -n 2 python as_torchrun.py with_ddp.py FOLDER
"""

import atexit
import os
import runpy
import socket
import sys

from mpi4py import MPI

world = MPI.COMM_WORLD
atexit.register(world.Barrier)  # all end together: when one has ended, mpiexec may end the others
node = world.Split_type(MPI.COMM_TYPE_SHARED)
here = "127.0.0.1" if node.size == world.size else socket.gethostname()  # (with several nodes, a name they all know)
with socket.socket() as free:
    free.bind(("", 0))
    address, port = world.bcast((here, free.getsockname()[1]))  # rank 0 has found a free port, and tells the others
os.environ |= {"RANK": f"{world.rank}", "WORLD_SIZE": f"{world.size}", "LOCAL_RANK": f"{node.rank}"}
os.environ |= {"LOCAL_WORLD_SIZE": f"{node.size}", "MASTER_ADDR": address, "MASTER_PORT": f"{port}"}

del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
