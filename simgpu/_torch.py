"""Every private name of torch that simulated GPUs use, under a public one, and the versions of torch that have them.

Other modules of simgpu take private names from here alone. (Only what torch looks for in what is ours, such as
``SimStorage._cdata``, stands there under torch's name; and operators of ``torch.ops`` are no names of Python.)
To try another version, set SIMGPU_UNTESTED_TORCH=1 and run tests/simgpu; cure here what it calls differently.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from operator import attrgetter, methodcaller
from typing import Any

import torch

if not torch.__version__.startswith(tuple(f"2.{minor}." for minor in range(10, 15))) and not os.environ.get(
    "SIMGPU_UNTESTED_TORCH"
):

    class UntriedTorch(ImportError):
        """A notebook shows its sentence, without a traceback."""

        def _render_traceback_(self) -> list[str]:
            return [f"ImportError: {self}"]

    raise UntriedTorch(
        f"simgpu reaches into torch, and works with torch 2.10 to 2.14, not with {torch.__version__}: install one of "
        "these (pip install torch==2.13.0), or set the environment variable SIMGPU_UNTESTED_TORCH=1 to try this one"
    )

from torch import _C, _utils, nn
from torch._C import Generator as PlainGenerator
from torch._C._acc import DeviceGuard, PrivateUse1Hooks
from torch._prims_common import suggest_memory_format
from torch.autograd import graph
from torch.nn.parallel import _functions
from torch.optim.optimizer import _foreach_supported_types as FOREACH_TYPES
from torch.utils._device import DeviceContext
from torch.utils._device import _device_constructors as device_constructors
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as introduce_device
from torch.utils.checkpoint import DefaultDeviceType
from torch.utils.data._utils import worker

StorageBase = torch.storage._StorageBase
current_node, current_graph_task, parse_to = _C._current_autograd_node, _C._current_graph_task_id, _C._nn._parse_to
new_wrapper, no_torch_function = torch.Tensor._make_wrapper_subclass, _C._disabled_torch_function_impl
past_autocast = partial(_C._ExcludeDispatchKeyGuard, _C.DispatchKeySet(_C._dispatch_key_parse("AutocastPrivateUse1")))
flatten_dense, take_tensors = _utils._flatten_dense_tensors, _utils._take_tensors
rebuild_parameter, rebuild_tensor = _utils._rebuild_parameter, _utils._rebuild_tensor_v2
share_storage, typed_storage = torch._functionalize_unsafe_set, partial(torch.storage.TypedStorage, _internal=True)
PACKAGES = torch.serialization._package_registry

# Of objects: an operator's three, a storage's place in C++, what a group does, how a placement splits; a library's end
schema_of, packet_of, op_of = attrgetter("_schema"), attrgetter("_overloadpacket"), attrgetter("_op")
address_of = attrgetter("_cdata")
all_gather_base, reduce_scatter_base = attrgetter("_allgather_base"), attrgetter("_reduce_scatter_base")
split_by, destroy = attrgetter("_split_tensor"), methodcaller("_destroy")


def untyped(storage: Any) -> Any:
    """A storage without its type, if it has one."""
    return getattr(storage, "_untyped_storage", storage)


def local_part(tensor: Any) -> Any:
    """A DTensor's part on this rank; any other tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)


@contextmanager
def on_wrapper_itself() -> Iterator[None]:
    """Inside, operators work on a wrapper's own shape, past its ``__torch_dispatch__``."""
    included = _C._meta_in_tls_dispatch_include()
    _C._set_meta_in_tls_dispatch_include(True)
    try:
        with _C._DisableTorchDispatch():
            yield
    finally:
        _C._set_meta_in_tls_dispatch_include(included)


# What simulated GPUs replace: an owner, and a name in it
ENGINES = tuple((owner, "_engine_run_backward") for owner in (graph, torch.autograd))
_DATA_PARALLEL = sys.modules["torch.nn.parallel.data_parallel"]  # (its package has a function of the same name)
DEVICE_TYPES = tuple((owner, "_get_available_device_type") for owner in (_utils, _DATA_PARALLEL))
COMM = {name: (_C, f"_{name}") for name in ("broadcast_coalesced", "broadcast", "broadcast_out")}
COMM |= {name: (_C, f"_{name}") for name in ("scatter", "scatter_out", "gather", "gather_out")}
GROUP_TENSORS, COPY_STREAM = (_C, "_group_tensors_by_device_and_dtype"), (_functions, "_get_stream")
WORKER_LOOP = worker, "_worker_loop"
CUDA_INITS = tuple((owner, "_lazy_init") for owner in (torch.cuda, torch.cuda.random))
CHECKPOINTED, TRUNCATED = (DefaultDeviceType, "_default_device_type"), (nn.init, "_no_grad_trunc_normal_")
SCRIPTED_APPLY = torch.jit.RecursiveScriptModule, "_apply"
CHECK_COMM_HOOK = nn.parallel.DistributedDataParallel, "_check_comm_hook"

_ON_DEMAND = {
    "AsyncCollectiveTensor": "torch.distributed._functional_collectives:AsyncCollectiveTensor",
    "ShardingPropagator": "torch.distributed.tensor._sharding_prop:ShardingPropagator",
    "OffsetBasedRNGTracker": "torch.distributed.tensor._random:OffsetBasedRNGTracker",
    "symmetric_memory": "torch.distributed._symmetric_memory:",
    "fake_group": "torch._C._distributed_c10d:FakeProcessGroup._create_internal",
    "default_store": "torch.distributed.distributed_c10d:_get_default_store",
    "group_named": "torch._C._distributed_c10d:_resolve_process_group",
    "RANDOM_TRACKER": "torch.distributed.tensor._random:, _rng_tracker",
    "FSDP_CHUNKS": "torch.distributed.fsdp._fully_shard._fsdp_param:, _chunk_with_empty",
    "forget_shardings": "torch.distributed.tensor.debug:_clear_sharding_prop_cache",
    "OFFLOAD": "torch.distributed.checkpoint._state_dict_stager:StateDictStager, _offload_tensor",
}
"""What takes time to import, and only ranks need. (After a comma what they replace in it.)"""


def forget_fake_tensors() -> None:
    """Torch remembers on which GPU a tensor of shapes alone comes out, and "simgpu" may be another one by now."""
    if module := sys.modules.get("torch._subclasses.fake_tensor"):
        module.FakeTensorMode.cache_clear()


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, path = _ON_DEMAND[name].partition(":")
    path, *replaced = path.split(", ")
    found: Any = import_module(module)
    if name == "forget_shardings" and not hasattr(found, path):  # torch 2.10 has one for each of its two caches
        python, below = found._clear_python_sharding_prop_cache, found._clear_fast_path_sharding_prop_cache
        return lambda: (python(), below())
    found = attrgetter(path)(found) if path else found
    return (found, *replaced) if replaced else found
