"""The programs of scripts/frameworks/ with their own launchers: mpiexec, horovodrun, torchrun, TensorFlow's roles.

- ``launch``: ``run`` one of them, watched and ended; ``results``: what came of it.
- ``tf_roles``: the processes of a TensorFlow cluster, each started with its TF_CONFIG.
- ``warm_process``: torch and TensorFlow are imported once, and all these processes are copies of those that did.
"""

from lessons.launchers.frameworks.launch import MARK, SCRIPTS, edited, horovodrun, mpiexec, run, warm
from lessons.launchers.frameworks.results import RunResult, Worker

__all__ = ["MARK", "SCRIPTS", "RunResult", "Worker", "edited", "horovodrun", "mpiexec", "run", "warm"]
