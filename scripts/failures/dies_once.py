"""In the first attempt, rank 1 is killed after a second. It does without torch."""

import os
import signal
import time

attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
print(f"attempt {attempt}: rank {rank} is here", flush=True)
if attempt == "0":
    time.sleep(1 if rank == "1" else 60)
    os.kill(os.getpid(), signal.SIGKILL)
print(f"attempt {attempt}: rank {rank} is done")
