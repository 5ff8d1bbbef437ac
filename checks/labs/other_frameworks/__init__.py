"""The exercises of this lab: the same training with MPI, Horovod, TensorFlow and JAX.

averaging.py   mpi: one collective for all gradients
trainings.py   horovod: a batch that grows with the workers; tensorflow: for several strategies; jax: on several devices
workers.py     starts mpiexec's, horovodrun's and TensorFlow's workers
"""

from checks.labs.other_frameworks.averaging import mpi
from checks.labs.other_frameworks.trainings import horovod, jax, tensorflow

EXERCISES = [mpi, horovod, tensorflow, jax]
