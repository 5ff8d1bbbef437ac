"""Read the report of `pip install --dry-run --report -` and print what it would install, a version a line.

Builds for one kind of machine ("2.13.0+cpu") become plain versions, so that the list holds on every machine.
"""

import json
import sys

OLDEST = (3, 11)

if sys.version_info[:2] != OLDEST:
    sys.exit("Make the list with Python 3.11, the oldest that the course allows: what it takes, newer ones take too.")
print("# What was tested, made by `make lock`. `make setup` takes these versions, `make setup LOCKED=` the newest.")
metadata = [one["metadata"] for one in json.load(sys.stdin)["install"]]
for name, version in sorted((one["name"].lower(), one["version"].partition("+")[0]) for one in metadata):
    if name != "multi-gpu-course":
        print(f"{name.replace('_', '-')}=={version}")
