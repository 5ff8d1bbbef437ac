"""The memory of a simulated GPU.

allocator.py  who holds how many bytes, what happens when there are not enough, and what is "reserved"
pictures.py   what fills it, kind by kind
"""
