"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

accounting.py     account: bytes on a GPU, from a model on the CPU
recomputing.py    checkpointed: what is held, computed and drawn again on a simulated GPU
scaling.py        scaler: scales, skipped steps and gradients
shares.py         utilization: MFU and HFU of measured steps
"""

from checks.labs.memory_and_precision.accounting import account
from checks.labs.memory_and_precision.recomputing import checkpointed
from checks.labs.memory_and_precision.scaling import scaler
from checks.labs.memory_and_precision.shares import utilization

EXERCISES = [account, checkpointed, scaler, utilization]
