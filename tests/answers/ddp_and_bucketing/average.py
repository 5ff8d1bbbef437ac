"""Exercise 1 of the lab on DistributedDataParallel: the same start, the same gradients."""

# ruff: noqa: F401 (modules that changed answers use)
import os
import random
import subprocess
import threading
import time

import torch
import torch.distributed as dist
from known_answers import right, wrong


def broadcast_state(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), 0)


def average_gradients(model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


EQUAL = {"24: `tensor.detach()` → `tensor`": "a broadcast writes past autograd, into a parameter too"}
SUM = "            dist.all_reduce(parameter.grad)\n"
MEAN = "            parameter.grad /= dist.get_world_size()\n"
FIRST = "    for tensor in [*model.parameters(), *model.buffers()]:\n"


# --- right, and written differently


@right("all at once, from the last one to the first, and then all waits")
def asynchronous():
    @torch.no_grad()
    def broadcast_state(model):
        works = [dist.broadcast(one, src=0, async_op=True) for one in (*model.parameters(), *model.buffers())]
        for work in works:
            work.wait()

    def average_gradients(model):
        gradients = [parameter.grad for parameter in reversed(list(model.parameters())) if parameter.requires_grad]
        torch._foreach_div_(gradients, dist.get_world_size())
        for work in [dist.all_reduce(gradient, async_op=True) for gradient in gradients]:
            work.wait()

    return broadcast_state, average_gradients


@right("everything of one type in one vector")
def flattened():
    def flat(tensors):
        for dtype in sorted({tensor.dtype for tensor in tensors}, key=str):
            alike = [tensor for tensor in tensors if tensor.dtype == dtype]
            yield alike, torch.cat([tensor.detach().flatten() for tensor in alike])

    def put_back(vector, tensors):
        with torch.no_grad():
            for tensor, part in zip(tensors, vector.split([tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def broadcast_state(model):
        for tensors, vector in flat([*model.parameters(), *model.buffers()]):
            dist.broadcast(vector, 0)
            put_back(vector, tensors)

    def average_gradients(model):
        for tensors, vector in flat([p.grad for p in model.parameters() if p.grad is not None]):
            vector /= dist.get_world_size()
            dist.all_reduce(vector)
            put_back(vector, tensors)

    return broadcast_state, average_gradients


@right("new gradients, the mean by the collective")
def new_gradients():
    def average_gradients(model):
        group = dist.group.WORLD
        for parameter in filter(lambda one: one.grad is not None, model.parameters()):
            mean = parameter.grad.clone()
            dist.all_reduce(tensor=mean, op=dist.ReduceOp.AVG, group=group)
            parameter.grad = mean

    return (average_gradients,)


@right("copies are broadcast by name, and the world's size is asked once")
def by_name():
    def broadcast_state(model):
        everything = dict(model.named_parameters()) | dict(model.named_buffers())
        for name in sorted(everything):
            copy = everything[name].detach().clone()
            dist.broadcast(copy, src=0, group=dist.group.WORLD)
            everything[name].data.copy_(copy)

    def average_gradients(model):
        factor = 1 / dist.get_world_size()
        with torch.no_grad():
            for _, parameter in sorted(model.named_parameters(), key=lambda pair: pair[0]):
                if not parameter.requires_grad:
                    continue
                total = parameter.grad * factor
                work = dist.all_reduce(total, dist.ReduceOp.SUM, None, True)
                assert work.wait()
                parameter.grad.copy_(total)

    return broadcast_state, average_gradients


vectors = {}


@right("a vector that is kept from step to step")
def kept_vector():
    def average_gradients(model):
        trained = [p for p in model.parameters() if p.requires_grad]
        key = id(model), sum(p.numel() for p in trained)
        if key not in vectors:
            vectors[key] = torch.empty(key[1], dtype=trained[0].dtype)
        parts = vectors[key].split([p.numel() for p in trained])
        for parameter, part in zip(trained, parts, strict=True):
            part.copy_(parameter.grad.flatten())
        dist.all_reduce(vectors[key])
        for parameter, part in zip(trained, parts, strict=True):
            parameter.grad.copy_(part.view_as(parameter) / dist.get_world_size())

    return (average_gradients,)


# --- wrong: what is sent

wrong("nothing is broadcast", "calls no broadcast at all", {"dist.broadcast(tensor.detach(), 0)": "pass"})
wrong("broadcast not waited for", "never waits for", {"tensor.detach(), 0)": "tensor.detach(), 0, async_op=True)"})
wrong("buffers forgotten", "holds no buffers", {"[*model.parameters(), *model.buffers()]": "model.parameters()"})
wrong("frozen left alone", "parameters() holds all of them, frozen ones too", {
    FIRST: FIRST + "        if isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad:\n            continue\n"
})  # fmt: skip
wrong("everybody is the source", "a broadcast from rank 1", {"detach(), 0": "detach(), dist.get_rank()"})
wrong("the last rank is the source", "calls broadcast with another rank", {
    "detach(), 0": "detach(), dist.get_world_size() - 1"
})  # fmt: skip
wrong("state_dict", "is still its own: parameters() holds no buffers, state_dict() not all of them", {
    "[*model.parameters(), *model.buffers()]": "model.state_dict().values()"
})  # fmt: skip
wrong("the tied weight is broadcast twice", "parameters() has it once, state_dict() twice", {
    "[*model.parameters(), *model.buffers()]": "[*model.state_dict().values(), model.scale.mask]"
})  # fmt: skip
wrong("the tied weight is averaged twice", "it is one tensor with one gradient", {
    "    for parameter in model.parameters():": "    for _, parameter in model.named_parameters(remove_duplicate=False):"
})  # fmt: skip
wrong("broadcast in a wider type", "sends more than it has to with broadcast", {
    "        dist.broadcast(tensor.detach(), 0)": "        wide = tensor.detach().double()\n"
    "        dist.broadcast(wide, 0)\n        tensor.data.copy_(wide)"
})  # fmt: skip
wrong("an order of its own", "the ranks do not call the same collectives", {
    "[*model.parameters(), *model.buffers()]": "sorted([*model.parameters(), *model.buffers()], "
    "key=lambda tensor: float(tensor.detach().double().mean()))"
})  # fmt: skip
wrong("rank 0 only", "and nothing more: its step is over on ranks 1, 2", {
    "parameter.requires_grad:": "parameter.requires_grad and dist.get_rank() == 0:"
})  # fmt: skip
wrong(
    "never waits", "never waits for", {SUM: MEAN, MEAN: "            dist.all_reduce(parameter.grad, async_op=True)\n"}
)
wrong("twice", "every gradient travels 2 times in a step", {SUM: SUM + SUM, MEAN: MEAN + MEAN})
wrong(
    "matrices only",
    "sends less than it has to",
    {"parameter.requires_grad:": "parameter.requires_grad and parameter.dim() > 1:"},
)
wrong("a barrier too", "calls dist.barrier", {MEAN: MEAN + "    dist.barrier()\n"})
wrong("the store as a channel", "calls store.", {
    MEAN: MEAN + "    dist.distributed_c10d._get_default_store().set(f'rank {dist.get_rank()}', 'done')\n"
})  # fmt: skip
wrong("past torch.distributed", "past torch.distributed's functions", {
    MEAN: MEAN + "    dist.group.WORLD._get_backend(torch.device('cpu')).allreduce([torch.ones(5000)]).wait()\n"
})  # fmt: skip
wrong("a group in every step", "leaves the process groups other than before", {
    "dist.all_reduce(parameter.grad)": "dist.all_reduce(parameter.grad, group=groups[0])",
    "def average_gradients(model):": "groups = [None]\n\n\ndef average_gradients(model):\n    groups[0] = dist.new_group()",
})  # fmt: skip
wrong("in a thread", "in another thread", {
    "def average_gradients(model):": "def average_gradients(model):\n    thread = threading.Thread(target=average, args=(model,))\n"
    "    thread.start()\n    thread.join()\n\n\ndef average(model):"
})  # fmt: skip


@wrong("all_gather", "calls dist.all_gather, and dist.all_reduce is all that it may call")
def all_gather():
    def average_gradients(model):
        for parameter in model.parameters():
            if parameter.requires_grad:
                everyone = [torch.empty_like(parameter) for _ in range(dist.get_world_size())]
                dist.all_gather(everyone, parameter.grad)
                parameter.grad = torch.stack(everyone).mean(0)

    return (average_gradients,)


@wrong("pickled state", "sends more than it has to with broadcast")
def pickled_state():
    def broadcast_state(model):
        state = [[*model.parameters(), *model.buffers()]]
        dist.broadcast_object_list(state, 0)
        with torch.no_grad():
            for mine, theirs in zip([*model.parameters(), *model.buffers()], state[0], strict=True):
                mine.copy_(theirs)

    return (broadcast_state,)


@wrong("mean of the models", "calls dist.all_reduce, and dist.broadcast is all that it may call")
def mean_of_the_models():
    def broadcast_state(model):
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.all_reduce(tensor.detach())
            tensor.data.copy_(tensor.data / dist.get_world_size())

    return (broadcast_state,)


@wrong("a seed in place of a broadcast", "calls no broadcast at all")
def seed():
    def broadcast_state(model):
        torch.manual_seed(0)
        for layer in model.modules():
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()

    return (broadcast_state,)


@wrong("frozen parameters travel", "frozen parameters travel too, which never get a gradient")
def frozen_too():
    def average_gradients(model):
        for parameter in model.parameters():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(gradient)
            gradient /= dist.get_world_size()

    return (average_gradients,)


# --- wrong: the numbers

wrong("sum", "is the sum over the ranks: divide by the world size, 3", {MEAN: ""})
wrong("divides twice", "is divided by the world size twice", {MEAN: MEAN + MEAN})
wrong("result dropped", "is still this rank's own: the mean does not arrive in `.grad`", {
    SUM: "            gradient = parameter.grad / dist.get_world_size()\n", MEAN: "            dist.all_reduce(gradient)\n"
})  # fmt: skip
wrong(
    "parameters are averaged",
    "is still this rank's own",
    {SUM + MEAN: (SUM + MEAN).replace("grad\n", "data\n").replace(".grad", ".data")},
)
wrong("three ranks always", "does not have the right numbers. The case: 2 ranks", {"/= dist.get_world_size()": "/= 3"})
wrong("at most three ranks", "the gradient of", {"/= dist.get_world_size()": "/= min(dist.get_world_size(), 3)"})
wrong(
    "in float32",
    "times what rounding explains",
    {SUM: "            parameter.grad.copy_(parameter.grad.float())\n" + SUM},
)
wrong("divides what travels", "changes a tensor while all_reduce is still using it", {
    SUM + MEAN: "            work = dist.all_reduce(parameter.grad, async_op=True)\n" + MEAN + "            work.wait()\n"
})  # fmt: skip
wrong("the first step only", "calls no all_reduce at all", {
    "def average_gradients(model):\n": "done = []\n\n\ndef average_gradients(model):\n    if done:\n        return\n    done.append(1)\n"
})  # fmt: skip


# --- wrong: what else is changed

wrong("eval", "is in another mode (train or eval) than before", {MEAN: MEAN + "    model.eval()\n"})
wrong("frozen parameters get zeros", "leave its `.grad` None", {
    MEAN: MEAN + "        else:\n            parameter.grad = torch.zeros_like(parameter)\n"
})  # fmt: skip
wrong(
    "a parameter is thawed",
    "has another `requires_grad` than before",
    {FIRST: FIRST + "        tensor.requires_grad_(tensor.is_floating_point())\n"},
)
wrong("other memory", "lies in other memory than before: ties and views of it are cut", {
    "dist.broadcast(tensor.detach(), 0)": "new = tensor.detach().clone()\n        dist.broadcast(new, 0)\n        tensor.data = new"
})  # fmt: skip
wrong("untied", "was replaced by a new object", {
    "        dist.broadcast(tensor.detach(), 0)\n": "        dist.broadcast(tensor.detach(), 0)\n"
    "    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)\n"
})  # fmt: skip
wrong("gradients cleared at the start", "has another `.grad` than before", {FIRST: "    model.zero_grad()\n" + FIRST})
wrong(
    "a hook is left",
    "has a hook more than before",
    {MEAN: MEAN + "            parameter.register_hook(lambda gradient: gradient)\n"},
)
wrong("others' hooks are removed", "has lost hooks", {
    MEAN: MEAN + "    model.head.weight._backward_hooks = None\n    model.stem._forward_pre_hooks.clear()\n"
})  # fmt: skip
wrong("parameters nudged", "has other numbers than before", {MEAN: MEAN + "            parameter.data += 1e-6\n"})
wrong("an attribute of the model", "has attributes that were added", {MEAN: MEAN + "    model.averaged = True\n"})
wrong(
    "grad mode stays off", "leaves grad mode other than before", {FIRST: "    torch.set_grad_enabled(False)\n" + FIRST}
)
wrong("seeded", "leaves torch's random numbers other than before", {FIRST: "    torch.manual_seed(0)\n" + FIRST})
wrong("Python's random numbers", "leaves Python's random numbers other", {FIRST: "    random.random()\n" + FIRST})
wrong("default type", "leaves torch's defaults other", {FIRST: "    torch.set_default_dtype(torch.float64)\n" + FIRST})
wrong("a child process", "starts a process", {MEAN: MEAN + "    subprocess.run(['true'])\n"})
wrong(
    "a file",
    "writes a file",
    {
        MEAN: MEAN
        + "    open(f'/tmp/gradient-{os.getpid()}', 'w').close()\n    os.remove(f'/tmp/gradient-{os.getpid()}')\n"
    },
)
wrong("a history is kept", "keeps more tensors after every call", {
    MEAN: MEAN + "            history.append(parameter.grad.clone())\n", "def average_gradients": "history = []\n\n\ndef average_gradients"
})  # fmt: skip
wrong(
    "a thread is left", "leaves the number of threads other", {MEAN: MEAN + "    threading.Timer(30, print).start()\n"}
)


# --- wrong: no work of one's own

wrong(
    "the library",
    "DistributedDataParallel, which does the exercise",
    {MEAN: MEAN + "    torch.nn.parallel.DistributedDataParallel(model)\n"},
)
wrong("a sleep in place of a wait", "never waits for", {
    SUM: MEAN, MEAN: "            dist.all_reduce(parameter.grad, async_op=True)\n            time.sleep(0.01)\n"
})  # fmt: skip
wrong("the course's own module", "uses lessons.algorithms.ddp: the course's own code is no answer", {
    MEAN: MEAN + "    import lessons.algorithms.ddp\n"
})  # fmt: skip
wrong("frames are read", "looks into the check", {MEAN: MEAN + "    __import__('sys')._getframe(1)\n"})
wrong("the judge's functions are patched", "the course's own code is no answer", {
    MEAN: MEAN + "    model.eval()\n    snapshot = __import__('sys').modules['checks.contracts.snapshot']\n"
    "    snapshot.Snapshot._note = lambda *_: None\n"
})  # fmt: skip
wrong("never ends", "is there a loop without end", {MEAN: MEAN + "    while True:\n        pass\n"})
wrong(
    "raises on one rank",
    "raised ValueError: no",
    {MEAN: MEAN + "    if dist.get_rank() == 1:\n        raise ValueError('no')\n"},
)
wrong(
    "gradients that are zero do not travel",
    "the ranks do not call the same collectives",
    {"        if parameter.requires_grad:": "        if parameter.requires_grad and parameter.grad.any():"},
)
wrong(
    "a model is broadcast once",
    "broadcast_state calls no broadcast at all",
    {FIRST: "    if hasattr(model, 'done'):\n        return\n    object.__setattr__(model, 'done', True)\n" + FIRST},
)
wrong(
    "models of the same sizes are broadcast once",
    "broadcast_state calls no broadcast at all",
    {
        FIRST: "    sizes = str([tensor.shape for tensor in model.parameters()])\n"
        "    if sizes in vars(broadcast_state).setdefault('seen', set()):\n        return\n"
        "    broadcast_state.seen.add(sizes)\n" + FIRST
    },
)
wrong("summed in a tensor with gaps", "a tensor with gaps in memory", {
    SUM: "            both = torch.stack([parameter.grad, parameter.grad], -1)\n"
    "            dist.all_reduce(both[..., 0])\n            parameter.grad.copy_(both[..., 0])\n"
})  # fmt: skip
wrong("gradients are clipped too", "does not have the right numbers", {
    MEAN: MEAN + "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
})  # fmt: skip
wrong("infinities are made numbers", "one has to come out", {MEAN: MEAN + "            parameter.grad.nan_to_num_()\n"})
wrong("a graph hangs on the gradients", "hangs on a graph", {
    MEAN: "            parameter.grad = parameter.grad / dist.get_world_size() + 0 * parameter\n"
})  # fmt: skip
wrong(
    "a history in a deque",
    "keeps more tensors after every call",
    {
        MEAN: MEAN + "            history.append(parameter.grad.clone())\n",
        "def average_gradients": "history = __import__('collections').deque()\n\n\ndef average_gradients",
    },
)
wrong(
    "a history of numpy's arrays",
    "keeps more tensors after every call",
    {
        MEAN: MEAN + "            history.append(parameter.grad.numpy().copy())\n",
        "def average_gradients": "history = []\n\n\ndef average_gradients",
    },
)
wrong(
    "warnings are hidden",
    "leaves which warnings are hidden other than before",
    {MEAN: MEAN + "    __import__('warnings').simplefilter('ignore')\n"},
)
wrong(
    "an attribute of the model's class",
    "its class has other attributes than before",
    {MEAN: MEAN + "    type(model).averaged = True\n"},
)
wrong(
    "smallest numbers become zero",
    "leaves torch's smallest numbers other than before",
    {MEAN: MEAN + "    torch.set_flush_denormal(True)\n"},
)
wrong(
    "backward in one thread",
    "leaves grad mode other than before",
    {MEAN: MEAN + "    torch._C._set_multithreading_enabled(False)\n"},
)
wrong("buffers of the first layers only", "buffer `branches.0.0.seen` is still its own", {
    "*model.buffers()]": "*(b for m in (model, *model.children()) for b in m.buffers(recurse=False))]"
})  # fmt: skip


@right("torch's operators by their own names")
def by_operators():
    def average_gradients(model):
        for parameter in model.parameters():
            if parameter.requires_grad:
                dist.all_reduce(parameter.grad)
                torch.ops.aten.div_.Scalar(parameter.grad.detach(), dist.get_world_size())

    return (average_gradients,)
