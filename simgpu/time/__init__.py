"""Simulated time: what operators and collectives cost, and when they run.

costs.py           what an operator costs; launches.py puts it on the timeline
nccl.py            which algorithm and protocol NCCL would choose, and its time
sharing.py         what collectives leave of a GPU to the kernels beside them
clock.py           when each piece of work runs; phases.py: in which phase of a step
work.py            streams, links, lanes of the host, and the work itself
streams.py         streams and events, as programs see them
happens_before.py  which work surely comes before which; accesses.py: who reads and writes which bytes
"""
