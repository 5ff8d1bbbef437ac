"""What checks look at: values on their way back, how far off they are, and what ranks say to each other."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading

import cloudpickle
import pytest

from checks import Opaque, run
from checks.engine.plain import from_bytes, to_bytes
from utils.ranks.recorder import Collective, Record, record_collectives

lock = threading.Lock()
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as if these functions stood in a notebook


# ---------------------------------------------------------------- values on their way back
def test_values_come_back_as_plain_data():
    import numpy
    import torch

    value = {
        "tensor": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
        "empty": torch.empty(0, 2),
        "one of a column": torch.arange(6.0).reshape(2, 3)[1:, 2],
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "array": numpy.arange(3),
        "scalar": numpy.float64(0.5),
        "tuple": (1, "a", None, {2, 3}, range(3), 1 + 2j),
        "shape": torch.Size([1, 2]),
        "dtype": torch.float32,
    }
    back = from_bytes(to_bytes(value))
    assert torch.equal(back["tensor"], value["tensor"]) and back["tensor"].dtype == torch.bfloat16
    assert back["one of a column"].tolist() == [5.0] and back["conjugate"].tolist() == [1 - 2j]
    assert back["empty"].shape == (0, 2) and back["array"].tolist() == [0, 1, 2]
    assert back["scalar"] == 0.5 and type(back["scalar"]) is float
    assert back["tuple"] == value["tuple"] and back["shape"] == (1, 2) and back["dtype"] == "torch.float32"
    assert from_bytes(to_bytes([lock])) == [Opaque("lock", repr(lock))]


def test_a_value_cannot_bring_code_along():
    import pickle

    class Nasty:
        def __reduce__(self):
            return os.system, ("exit 1",)

    with pytest.raises(pickle.UnpicklingError, match="Weights only"):
        from_bytes(pickle.dumps(Nasty()))
    assert from_bytes(to_bytes(Nasty())).kind == "Nasty"


# ---------------------------------------------------------------- collectives
def test_the_recorder_sees_every_kind_of_communication():
    calls = [Record([Collective(**call) for call in per_rank]) for per_rank in run(_talk, ranks=4, timeout=100)]
    assert calls[0].names == [
        *("all_reduce", "all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "barrier"),
        *("send", "recv", "all_gather", "all_gather", "all_gather", "broadcast", "broadcast"),  # object, then DDP
        *("all_reduce", "all_reduce"),
    ]
    assert calls[1].names == calls[3].names == [*calls[0].names[:2], "all_reduce", *calls[0].names[2:]]
    first, second, in_group, root = calls[1].calls[:4]
    assert (first.bytes, first.dtype, first.asynchronous, first.ranks) == (16, "float32", False, (0, 1, 2, 3))
    assert (second.bytes, second.dtype, second.asynchronous) == (32, "float64", True)
    assert in_group.ranks == (1, 3)
    assert root.peer == 2
    (send,), (receive,) = calls[3].of("send"), calls[3].of("recv")
    assert (send.peer, receive.peer, send.bytes, send.asynchronous) == (0, 2, 16, None)
    assert calls[3].sent_bytes == 16
    assert calls[0].of("reduce_scatter")[0].bytes == 64


def _talk():
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group([1, 3])
    model = torch.nn.Linear(4, 4)

    def ones(n=4, dtype=torch.float32):
        return torch.ones(n, dtype=dtype)

    with record_collectives() as record:
        dist.all_reduce(ones())
        dist.all_reduce(ones(dtype=torch.float64), async_op=True).wait()
        if rank in (1, 3):
            dist.all_reduce(ones(), group=group)
        dist.broadcast(ones(), 2)
        dist.all_gather([ones() for _ in range(size)], ones())
        dist.reduce_scatter(ones(), [ones() for _ in range(size)])
        dist.all_to_all_single(ones(), ones())
        dist.barrier()
        request = dist.isend(ones(), (rank + 1) % size)
        dist.recv(ones(), (rank - 1) % size)
        request.wait()
        dist.all_gather_object([None] * size, "text")
        replica = DistributedDataParallel(model)
        replica(ones()).sum().backward()
        thread = threading.Thread(target=lambda: dist.all_reduce(ones()))
        thread.start()
        thread.join()
    dist.all_reduce(ones())  # not recorded any more
    return [dataclasses.asdict(call) for call in record.calls]
