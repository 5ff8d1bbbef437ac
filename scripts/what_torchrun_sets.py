"""Prints the environment variables that torchrun sets for its workers, as JSON. There is no torch in it."""

import json
import os

PREFIXES = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "OMP_NUM_THREADS")

print(json.dumps({name: value for name, value in os.environ.items() if name.startswith(PREFIXES)}))
