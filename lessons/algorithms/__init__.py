"""What lectures build from nothing, as modules to read.

- ``all_reduce``: five all-reduces over send and recv. ``parameter_server``: on real ranks, and in simulated time.
- ``pipelines``: stages, schedules of micro-batches, a training step. ``refcounts``: two threads and no lock.
- ``ddp``: DistributedDataParallel, and the buckets of what is reduced together.
"""
