"""Uses a package that some nodes have."""

import os

import nice_plots

print(f"node {os.environ['GROUP_RANK']} plots with version", nice_plots.version)
