"""The lecture's training with JAX: one program over the devices of all processes.

    mpiexec -n 2 python with_jax.py FOLDER [PAUSE]

There is no all-reduce in it. The compiler adds one, because the batch is divided over the devices and the weights are
not. PAUSE: seconds after each step.
"""

import socket
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy
from jax.experimental.multihost_utils import broadcast_one_to_all
from jax.sharding import NamedSharding, PartitionSpec
from mpi4py import MPI

from utils.training.same_training import LEARNING_RATE, STEPS, Batches, weights, write

folder, pause = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0
me, workers = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size  # (under Slurm, or on Cloud TPUs, JAX asks by itself)
with socket.socket() as free:
    free.bind(("", 0))
    address = MPI.COMM_WORLD.bcast(f"{socket.gethostname()}:{free.getsockname()[1]}")  # worker 0's
jax.distributed.initialize(address, workers, me)
batches = Batches(me, workers)

mesh = jax.make_mesh((jax.device_count(),), ("data",))
divided, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
variables = [jax.make_array_from_process_local_data(whole, array) for array in broadcast_one_to_all(weights(seed=me))]


def loss_of(variables, images, labels):
    weight, bias, weight_2, bias_2 = variables
    logits = jax.nn.relu(images @ weight + bias) @ weight_2 + bias_2
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1).mean()


@jax.jit
def train_step(variables, images, labels):
    loss, gradients = jax.value_and_grad(loss_of)(variables, images, labels)
    return loss, [variable - LEARNING_RATE * gradient for variable, gradient in zip(variables, gradients, strict=True)]


losses = []
for step in range(STEPS):
    images, labels = (jax.make_array_from_process_local_data(divided, array) for array in batches[step])
    loss, variables = train_step(variables, images, labels)
    losses.append(loss.item())
    print(f"step {step + 1}", flush=True)
    time.sleep(pause)

final = [jax.device_get(variable) for variable in variables]
print(f"weights add up to {sum(float(array.sum()) for array in final):.3f}", flush=True)
if me == 0:
    numpy.savez(folder / "model.npz", *final)
    compiled = train_step.lower(variables, images, labels).compile().as_text()
    write(folder / "jax.json", losses, final, all_reduces=compiled.count(" all-reduce("))
