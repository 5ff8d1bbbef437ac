"""What happened on simulated GPUs.

profile.py  times, FLOPs, memory
trace.py    the same as torch.profiler writes it for CUDA, for Perfetto too
regions.py  names for what GPUs do, also those of torch's profiler and pipelines
races.py    finds work of two streams that nothing puts in order, and says so to the reader
steps.py    what a program's steps took
"""
