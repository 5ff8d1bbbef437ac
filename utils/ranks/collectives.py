"""The one table of collectives: what people call each method of a ``ProcessGroup`` that begins one, and its tensors."""

from __future__ import annotations

# Its name, the place of the tensors that go in among the arguments, and of those that come out.
METHODS: dict[str, tuple[str, int | None, int | None]] = {
    "allreduce": ("all_reduce", 0, 0),
    "allreduce_coalesced": ("all_reduce", 0, 0),
    "broadcast": ("broadcast", 0, 0),
    "reduce": ("reduce", 0, 0),
    "allgather": ("all_gather", 1, 0),
    "_allgather_base": ("all_gather", 1, 0),
    "all_gather_single": ("all_gather", 1, 0),
    "all_gather_single_coalesced": ("all_gather", 1, 0),
    "allgather_coalesced": ("all_gather", 1, 0),
    "allgather_into_tensor_coalesced": ("all_gather", 1, 0),
    "gather": ("gather", 1, 0),
    "scatter": ("scatter", 1, 0),
    "reduce_scatter": ("reduce_scatter", 1, 0),
    "_reduce_scatter_base": ("reduce_scatter", 1, 0),
    "reduce_scatter_single": ("reduce_scatter", 1, 0),
    "reduce_scatter_single_coalesced": ("reduce_scatter", 1, 0),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", 1, 0),
    "all_to_all_single": ("all_to_all", 1, 0),
    "alltoall": ("all_to_all", 1, 0),
    "alltoall_base": ("all_to_all", 1, 0),
    "send": ("send", 0, None),
    "recv": ("recv", None, 0),
    "recv_anysource": ("recv", None, 0),
    "barrier": ("barrier", None, None),
    "monitored_barrier": ("barrier", None, None),
}
_FUNCTIONAL = {  # operators that have no method of their name
    "all_reduce_coalesced": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "recv_any_source": "recv",
    "irecv": "recv",
    "isend": "send",
}


def name_of(operator: str) -> str:
    """What people call an operator of torch's: "all_gather" for ``_allgather_base_`` and ``all_gather_into_tensor``."""
    short = operator.strip("_")
    return short if short == "monitored_barrier" else _NAMES.get(short, short)


_NAMES = {method.strip("_"): name for method, (name, *_) in METHODS.items()} | _FUNCTIONAL
