"""Simulated time: what operators and collectives cost, and when they run.

costs.py           what an operator costs; launches.py puts it on the timeline
nccl.py            which algorithm and protocol NCCL would choose, its time, and what it leaves of a GPU meanwhile
clock.py           when each piece of work runs, and in which phase of a step
work.py            streams, links, lanes of the host, and the work itself
streams.py         streams and events, as programs see them
happens_before.py  which work surely comes before which, and who reads and writes which bytes
"""
