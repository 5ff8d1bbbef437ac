"""The programs of scripts/frameworks/ with their own launchers: mpiexec, horovodrun, torchrun, TensorFlow's roles.

- ``launch``: ``run`` one of them, watched and ended; ``results``: what came of it.
- ``tf_roles``: the processes of a TensorFlow cluster, each started with its TF_CONFIG.
"""

from lessons.launchers.frameworks.launch import SCRIPTS, edited, horovodrun, mpiexec, run
from lessons.launchers.frameworks.results import RunResult, Worker
from lessons.launchers.warm_process import MARK, warm

__all__ = ["MARK", "SCRIPTS", "RunResult", "Worker", "edited", "horovodrun", "mpiexec", "run", "warm"]
