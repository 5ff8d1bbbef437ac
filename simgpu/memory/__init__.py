"""The memory of a simulated GPU.

allocator.py  who holds how many bytes, and what happens when there are not enough; caching.py: what is "reserved"
pictures.py   what fills it, kind by kind
"""
