"""In the first attempt, rank 1 is killed after three seconds. There is no torch in it."""

import os
import signal
import time

attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
print(f"attempt {attempt}: rank {rank} is here", flush=True)
if attempt == "0":
    time.sleep(3 if rank == "1" else 60)
    os.kill(os.getpid(), signal.SIGKILL)
print(f"attempt {attempt}: rank {rank} is done")
