"""Rank 1 raises. With --record, torchrun is told what."""

import os
import sys

from torch.distributed.elastic.multiprocessing.errors import record


def main() -> None:
    if os.environ["RANK"] == "1":
        raise ValueError("a learning rate of -1")


if "--record" in sys.argv:
    main = record(main)
main()
