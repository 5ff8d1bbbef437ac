"""What happens when an operator meets a tensor on a simulated GPU.

Every operator that autograd hands down comes to ``dispatch``, which

1. checks that all inputs are on one GPU, as CUDA does,
2. runs the operator on the plain tensors,
3. counts the memory of what came out, by storage,
4. puts the work on the GPU's timeline.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from utils.simgpu import costs, memory, shapes, transfers
from utils.simgpu.clock import Work, in_backward, phase_now
from utils.simgpu.cluster import Cluster, SimulatedGPU, current
from utils.simgpu.memory import Allocation
from utils.simgpu.tensor import SimTensor, check_cluster, copy_to_host, take_over_shape

aten = torch.ops.aten


class Operator:
    """What is the same at every call of one overload, looked up once."""

    __slots__ = (
        "asks_anew",
        "data_dependent",
        "foreach",
        "free",
        "metadata_changes",
        "name",
        "packet",
        "random",
    )

    def __init__(self, func: Any) -> None:
        self.packet = func._overloadpacket
        self.name = self.packet.__name__
        self.free = func.is_view or self.packet in _FREE
        self.foreach = self.name.startswith("_foreach")
        self.random = torch.Tag.nondeterministic_seeded in func.tags
        self.metadata_changes = torch.Tag.inplace_view in func.tags
        # Views must share their input's storage; the others change what they are given.
        self.asks_anew = self.free or self.metadata_changes or "out" in func._schema.overload_name
        self.data_dependent = (
            torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags
        )


_FREE = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided, aten.lift_fresh}
_FREE |= {aten.detach, aten._unsafe_view, aten._reshape_alias, aten.is_same_size, aten.lift, aten.alias}
_MAY_READ_HOST_TENSORS = {
    aten._pack_padded_sequence,
    aten.index,
    aten.index_put_,
    aten.index_put,
    aten._index_put_impl_,
    aten._unsafe_index,
}
_operators: dict[Any, Operator] = {}


def operator_of(func: Any) -> Operator:
    """The facts about an overload."""
    operator = _operators.get(func)
    if operator is None:
        operator = _operators[func] = Operator(func)
    return operator


def run(func: Any, args: tuple, kwargs: dict) -> Any:
    """Check the devices, compute, count memory, note the time."""
    operator = operator_of(func)
    inputs: list[SimTensor] = []
    hosts: list[torch.Tensor] = []
    raw_args = [_unwrap(arg, inputs, hosts) for arg in args]
    raw_kwargs = {name: _unwrap(arg, inputs, hosts) for name, arg in kwargs.items()} if kwargs else {}
    cluster = current()
    asked = raw_kwargs.get("device")
    to_host, guess = False, None
    if not inputs:  # only empty lists or host tensors: nothing here is simulated
        raise NotImplementedError(f"{operator.name} did not get a tensor on a simulated GPU")
    gpu = _one_gpu(operator, inputs, hosts, cluster)
    if asked is not None:
        asked = torch.device(asked)
        to_host = asked.type not in ("simgpu", "meta")
        if asked.type == "simgpu":
            if asked.index or not in_backward():  # backward's C++ says 0 and means the GPU of its input
                gpu, guess = place(asked)
            raw_kwargs["device"] = inputs[0].raw.device
    if operator.foreach and any(tensor.allocation.memory is not gpu.memory for tensor in inputs):
        _check_lists(operator, args)
    if hosts and operator.packet in _MAY_READ_HOST_TENSORS and not isinstance(args[0], SimTensor):
        raise RuntimeError(
            f"indices should be either on cpu or on the same device as the indexed tensor ({hosts[0].device})"
        )
    out = compute(operator, func, raw_args, raw_kwargs, gpu, cluster)
    if to_host:
        return out
    if "out" in raw_kwargs:
        for tensor in inputs:
            if tensor.raw.shape != tensor.shape:
                take_over_shape(tensor)
    result = _wrap(out, inputs, gpu)
    if guess is None and all(tensor.allocation.provisional is not None for tensor in inputs):
        guess = inputs[0].allocation.provisional  # made of guesses only: no surer than they are
    if guess is not None:
        for tensor in tensors_in(result):
            tensor.allocation.provisional = guess
    if operator.metadata_changes:
        _repeat_on_wrapper(func, args, kwargs)
    if not operator.free:
        if operator.foreach and any(tensor.allocation.memory is not gpu.memory for tensor in inputs):
            _submit_foreach(operator, args, inputs, cluster)
        else:
            work = submit(operator, inputs, args, kwargs, out, gpu, cluster)
            for tensor in tensors_in(result if result is not None else args[0]):
                tensor.allocation.last_write = work
    if in_backward() and operator.name in ("detach", "clone", "add_", "copy_"):
        _label_gradient(result)
    return result


def _check_lists(operator: Operator, args: tuple) -> None:
    """A ``_foreach`` operator takes lists of tensors; those that belong together must be on one GPU."""
    lists = [[t for t in arg if isinstance(t, SimTensor)] for arg in args if isinstance(arg, (list, tuple))]
    for together in zip(*(each for each in lists if each), strict=False):
        gpus = {tensor.gpu for tensor in together}
        if len(gpus) > 1:
            raise RuntimeError(_two_devices(operator, [f"simgpu:{gpu}" for gpu in sorted(gpus)]))


def _label_gradient(result: Any) -> None:
    """What autograd's AccumulateGrad keeps is a gradient."""
    node = torch._C._current_autograd_node()
    if node is not None and isinstance(result, SimTensor) and "AccumulateGrad" in node.name():
        result.allocation.label.kind = memory.GRADIENTS
        if isinstance(node.variable, SimTensor) and not _moves(result, node.variable.allocation.memory):
            raise RuntimeError(
                "a function returned an invalid gradient: expected device "
                f"{node.variable.device} but got {result.device}"
            )


def compute(operator: Operator, func: Any, args: Any, kwargs: dict, gpu: SimulatedGPU, cluster: Cluster) -> Any:
    """Run an operator on plain tensors, with clear words for what cannot be done."""
    if not cluster.numbers and operator.data_dependent:
        raise RuntimeError(
            f"{operator.name} needs the numbers in a tensor, but this cluster keeps only shapes (numbers=False): "
            "leave it out, or make the cluster with numbers=True"
        )
    try:
        if not cluster.numbers:
            return func(*args, **kwargs) if operator.asks_anew else shapes.compute(func, args, kwargs)
        if operator.random:
            from utils.simgpu.backend import random_numbers_of

            with random_numbers_of(gpu):
                return func(*args, **kwargs)
        return func(*args, **kwargs)
    except NotImplementedError as error:
        where = "CPU" if cluster.numbers else "torch's shape-only device"
        raise NotImplementedError(
            f"a simulated GPU cannot do {operator.name}, for which there is no kernel for the {where}: use another "
            f"operator, or compute it on the CPU (tensor.cpu()). torch says: {str(error).splitlines()[0][:200]}"
        ) from error


def _unwrap(arg: Any, inputs: list[SimTensor], hosts: list[torch.Tensor]) -> Any:
    kind = type(arg)
    if kind is SimTensor:
        inputs.append(arg)
        return arg.raw
    if kind is list or kind is tuple:
        return kind(_unwrap(each, inputs, hosts) for each in arg)
    if isinstance(arg, torch.Tensor):
        if isinstance(arg, SimTensor):
            inputs.append(arg)
            return arg.raw
        hosts.append(arg)
    return arg


def _one_gpu(operator: Operator, inputs: list[SimTensor], hosts: list[torch.Tensor], cluster: Cluster) -> SimulatedGPU:
    """The GPU that all inputs are on. Raises what CUDA raises if there is more than one."""
    ledger = inputs[0].allocation.memory
    for tensor in inputs:
        other = tensor.allocation.memory
        if other.clock is not cluster.clock:
            check_cluster(tensor)
        if other is not ledger:
            ledger = _agree(operator, inputs)
    if hosts and operator.packet not in _MAY_READ_HOST_TENSORS:
        for host in hosts:
            if host.dim() and host.numel() and not host.is_meta:
                raise RuntimeError(_two_devices(operator, [f"simgpu:{ledger.gpu}", str(host.device)]))
    return cluster.gpus[ledger.gpu]


def _agree(operator: Operator, inputs: list[SimTensor]) -> memory.Memory:
    """Inputs are on several GPUs: an error, unless C++ only guessed where one of them should be (see ``place``)."""
    if operator.foreach:  # works tensor by tensor
        return inputs[0].allocation.memory
    certain = [tensor for tensor in inputs if not tensor.allocation.provisional]
    filled = [tensor for tensor in certain if tensor.numel()] or certain
    sure = {tensor.allocation.memory.gpu: tensor.allocation.memory for tensor in filled}
    if len(sure) != 1:
        names = sorted({t.allocation.memory.gpu for t in inputs})
        raise RuntimeError(_two_devices(operator, [f"simgpu:{gpu}" for gpu in (sorted(sure) or names)]))
    ledger = next(iter(sure.values()))
    for tensor in inputs:
        if tensor.numel() and not _moves(tensor, ledger):
            raise RuntimeError(_two_devices(operator, [f"simgpu:{tensor.gpu}", f"simgpu:{ledger.gpu}"]))
    return ledger


def _moves(tensor: SimTensor, ledger: memory.Memory) -> bool:
    """Is the tensor on that GPU, or was its place only a guess, so that it can be moved there now?"""
    allocation = tensor.allocation
    if allocation.memory is ledger:
        return True
    if allocation.provisional is True or (allocation.provisional and allocation.provisional == _call_site()):
        allocation.move_to(ledger)
        return True
    return False


def _two_devices(operator: Operator, names: list[str]) -> str:
    return (
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{' and '.join(names[:2])}! (in {operator.name}; move one of them with .to(...))"
    )


def _call_site() -> Any:
    """Which call of the user's code is running: its frame and the position in it. True: none, C++ runs by itself."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_OWN_FOLDER) and "/torch/_" not in name and "/torch/library" not in name:
            return id(frame), frame.f_lasti
        frame = frame.f_back
    return True


_OWN_FOLDER = __file__.rpartition("/")[0] + "/"


def place(device: torch.device) -> tuple[SimulatedGPU, Any]:
    """The GPU of a new tensor for which there is only a device, and whether that is a guess.

    Operators written in C++ make helper tensors "on the device of the input", which they see as number 0. So a new
    tensor for number 0 is provisional: if the same call of the user's code combines it with tensors of another GPU, it
    moves there. Combined by another line, it is the error that CUDA raises.
    """
    cluster = current()
    gpu = cluster.gpus[cluster.index(device)]
    return gpu, (_call_site() if device.index == 0 else None)


def _wrap(out: Any, inputs: list[SimTensor], gpu: SimulatedGPU) -> Any:
    """What an operator returned, as tensors on the GPU: an input itself, a view of one, or something new."""
    if out is None:
        return None
    themselves = {id(tensor.raw): tensor for tensor in inputs}
    owners = {tensor.allocation.address: tensor.allocation for tensor in inputs}
    return _wrap_one(out, inputs, gpu, themselves, owners)


def _wrap_one(one: Any, inputs: list[SimTensor], gpu: SimulatedGPU, themselves: dict, owners: dict) -> Any:
    # Not a function inside _wrap: one that calls itself is a reference cycle, which would keep the tensors alive.
    if isinstance(one, (list, tuple)):
        homes = _homes(one, inputs, gpu)
        wrapped = [_wrap_one(each, inputs, home, themselves, owners) for each, home in zip(one, homes, strict=True)]
        return type(one)(wrapped) if type(one) in (list, tuple) else tuple(wrapped)
    if not isinstance(one, torch.Tensor):
        return one
    if id(one) in themselves:
        return themselves[id(one)]
    if one.layout is not torch.strided:
        raise NotImplementedError("a simulated GPU cannot hold sparse tensors: keep them on the CPU")
    storage = one.untyped_storage()
    owner = owners.get(storage._cdata)
    if owner is None:
        owner = owners[storage._cdata] = Allocation(gpu.memory, storage, memory.kind_now())
    return SimTensor(one, owner)


def _homes(outputs: Any, inputs: list[SimTensor], gpu: SimulatedGPU) -> list[SimulatedGPU]:
    """The GPU of each output: for a ``_foreach`` operator over several GPUs, that of the input beside it."""
    if len(inputs) >= len(outputs) > 1 and any(t.allocation.memory is not gpu.memory for t in inputs):
        return [current().gpus[tensor.gpu] for tensor in inputs[: len(outputs)]]
    return [gpu] * len(outputs)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in a value: itself, or those in a list or tuple, however deep."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in tensors_in(each)]
    return []


def submit(
    operator: Operator,
    inputs: list[SimTensor],
    args: tuple,
    kwargs: dict,
    out: Any,
    gpu: SimulatedGPU,
    cluster: Cluster,
) -> Work:
    """Put an operator on its GPU's timeline."""
    outputs = tensors_in(out)
    flop = costs.flops(operator.packet, args, kwargs, out)
    into = kwargs.get("out")  # only written
    nbytes = costs.traffic(operator.packet, inputs if into is None else [t for t in inputs if t is not into], outputs)
    kind = costs.kind_of_number(operator.packet, inputs[0].dtype) if flop else ""
    seconds = costs.seconds(gpu.model, flop, kind, nbytes)
    work = _launch(operator.name, seconds, flop, nbytes, inputs, gpu, cluster)
    if operator.data_dependent:  # how large its output is must be known on the host
        cluster.synchronize(gpu.index)
    return work


def _launch(
    name: str, seconds: float, flop: int, nbytes: int, inputs: list[SimTensor], gpu: SimulatedGPU, cluster: Cluster
) -> Work:
    return cluster.clock.launch(
        name,
        phase_now(),
        gpu.name,
        seconds,
        gpus=(gpu.index,),
        queues=(cluster.current_stream(gpu.index),),
        needs=[tensor.allocation.last_write for tensor in inputs],
        flops=flop,
        nbytes=nbytes,
    )


def _submit_foreach(operator: Operator, args: tuple, inputs: list[SimTensor], cluster: Cluster) -> None:
    """A ``_foreach`` operator over several GPUs is one launch on each."""
    for gpu in sorted({tensor.gpu for tensor in inputs}):
        mine = [tensor for tensor in inputs if tensor.gpu == gpu]
        home = cluster.gpus[gpu]
        written = [tensor for tensor in tensors_in(args[0]) if tensor.gpu == gpu]
        nbytes = sum(tensor.nbytes for tensor in (*mine, *written))
        work = _launch(operator.name, costs.seconds(home.model, 0, "", nbytes), 0, nbytes, mine, home, cluster)
        for tensor in written:
            tensor.allocation.last_write = work


def _repeat_on_wrapper(func: Any, args: tuple, kwargs: dict) -> None:
    """``t_``, ``unsqueeze_`` and the like change shapes: do it to the wrapper's shape too."""
    included = torch._C._meta_in_tls_dispatch_include()
    torch._C._set_meta_in_tls_dispatch_include(True)
    try:
        with torch._C._DisableTorchDispatch():
            func(*args, **kwargs)
    finally:
        torch._C._set_meta_in_tls_dispatch_include(included)


# --- Operators that move data between devices, or need numbers on the host ----------------------------------


def _to_copy(func: Any, args: tuple, kwargs: dict) -> Any:
    """A new type or layout; or a copy to the CPU. (Copies between simulated GPUs come through ``SimTensor.to``.)"""
    device = kwargs.get("device")
    kept = {name: value for name, value in kwargs.items() if name not in ("device", "pin_memory", "non_blocking")}
    if device is None or torch.device(device).type == "simgpu":
        return run(func, args, kept)
    source = args[0] if kwargs.get("dtype") in (None, args[0].dtype) else run(func, args, kept)
    if torch.device(device).type == "meta":
        return torch.empty_like(source.raw, device="meta")
    return copy_to_host(source).to(device, memory_format=kwargs.get("memory_format") or torch.preserve_format)


def _copy_(func: Any, args: tuple, kwargs: dict) -> Any:
    target, source, *_ = args
    cluster = current()
    if not isinstance(target, SimTensor):
        return target.copy_(copy_to_host(source))
    if not isinstance(source, SimTensor):
        check_cluster(target)
        if source.dim() == 0:  # a number: part of the launch
            return run(aten.fill_.Scalar, (target, source.item()), {}) if not source.is_meta else target
        if cluster.numbers:
            target.raw.copy_(source)
        non_blocking = bool(args[2]) if len(args) > 2 else bool(kwargs.get("non_blocking"))
        target.allocation.last_write = transfers.from_host(cluster, target.gpu, source, non_blocking)
        return target
    if _moves(target, source.allocation.memory):
        return run(func, args, kwargs)
    check_cluster(source)
    check_cluster(target)
    target.raw.copy_(source.raw)
    nbytes = source.nbytes
    target.allocation.last_write = transfers.between_gpus(cluster, source.allocation, target.gpu, nbytes)
    return target


def _item(func: Any, args: tuple, kwargs: dict) -> Any:
    (tensor,) = args
    check_cluster(tensor)
    cluster = current()
    if not cluster.numbers:
        raise RuntimeError(
            "this cluster keeps only shapes (numbers=False), so no tensor has a value to read (.item(), float(), "
            "if …): leave it out, or make the cluster with numbers=True"
        )
    transfers.to_host(cluster, tensor.allocation, tensor.nbytes)
    return func(tensor.raw)


def _conjugate(func: Any, args: tuple, kwargs: dict) -> Any:
    """Torch only marks a tensor as conjugated (or negated); the mark would be lost, so it is done at once."""
    return run(aten.conj_physical.default if func._overloadpacket is aten._conj else aten.neg.default, args, kwargs)


def _nothing(func: Any, args: tuple, kwargs: dict) -> None:
    """``record_stream``: simulated memory is never used twice at the same time."""


def _refuse(func: Any, args: tuple, kwargs: dict) -> Any:
    name = func._overloadpacket.__name__
    raise NotImplementedError(
        f"a simulated GPU cannot do {name}, which changes a tensor's storage in place: make a new tensor instead"
    )


SPECIAL = {
    aten._to_copy: _to_copy,
    aten.copy_: _copy_,
    aten._local_scalar_dense: _item,
    aten._conj: _conjugate,
    aten._neg_view: _conjugate,
    aten.record_stream: _nothing,
    aten.resize_: _refuse,
    aten.set_: _refuse,
}


def dispatch(func: Any, args: tuple, kwargs: dict) -> Any:
    """Run one operator that has a simulated tensor among its inputs."""
    special = SPECIAL.get(func._overloadpacket)
    return run(func, args, kwargs) if special is None else special(func, args, kwargs)


SimTensor.run_operator = staticmethod(dispatch)
