"""``python -m simgpu``: see ``simgpu.command``."""

import sys

from simgpu.command import main

if __name__ == "__main__":
    sys.exit(main())
