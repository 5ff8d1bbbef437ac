"""Failures on purpose: broken programs run on ranks, and what the system does to a process.

- ``diagnose``: runs a broken program and says how it ended on each rank, as a table; ``rank_run``: what each rank does.
- ``isolation``: files with another content and a memory limit for one process (Linux, root).
"""
