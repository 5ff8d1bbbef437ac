"""Simulated time: what operators and collectives cost, and when they run.

counting.py        what an operator multiplies and moves; costs.py: how long that takes; launches.py: onto the timeline
nccl.py            which algorithm and protocol NCCL would choose, and its time
sharing.py         what collectives leave of a GPU to the kernels beside them
clock.py           when each piece of work runs; phases.py: in which phase of a step
work.py            streams, links, lanes of the host, and the work itself
streams.py         streams and events, as programs see them
happens_before.py  which work surely comes before which; accesses.py: who reads and writes which bytes
"""
