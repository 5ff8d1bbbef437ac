"""The programs of scripts/frameworks/ with their own launchers: mpiexec, horovodrun, torchrun, TensorFlow's roles.

- ``launch``: ``run`` one of them, and see what came of it (``results``); ``watch``: mpiexec and horovodrun, watched.
- ``tf_roles``: the processes of a TensorFlow cluster, each started with its TF_CONFIG.
- ``warm_process``: torch and TensorFlow are imported once, and all these processes are copies of those that did.
- ``horovod_wheel``: builds Horovod against the torch that is installed.
"""

from lessons.launchers.frameworks.launch import SCRIPTS, edited, horovodrun, mpiexec, run, warm
from lessons.launchers.frameworks.results import RunResult, Worker
from lessons.launchers.frameworks.watch import MARK

__all__ = ["MARK", "SCRIPTS", "RunResult", "Worker", "edited", "horovodrun", "mpiexec", "run", "warm"]
