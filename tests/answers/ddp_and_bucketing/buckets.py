"""Exercise 3 of the lab on DistributedDataParallel: gradients travel in buckets, in the same order on all ranks."""

import torch
import torch.distributed as dist
from known_answers import right, wrong


class Bucketed:
    def __init__(self, model, cap):
        self.buckets, self.number, is_open = [], {}, {}
        for parameter in reversed(list(model.parameters())):
            if not parameter.requires_grad:
                continue
            number = is_open.setdefault(parameter.dtype, len(self.buckets))
            if number == len(self.buckets):
                self.buckets.append([])
            self.buckets[number].append(parameter)
            self.number[parameter] = number
            if sum(p.nbytes for p in self.buckets[number]) >= cap:
                del is_open[parameter.dtype]
            parameter.register_post_accumulate_grad_hook(self.ready)
        self.missing = [len(bucket) for bucket in self.buckets]
        self.travelling = []

    def ready(self, parameter):
        self.missing[self.number[parameter]] -= 1
        while len(self.travelling) < len(self.buckets) and self.missing[len(self.travelling)] == 0:
            bucket = self.buckets[len(self.travelling)]
            flat = torch.cat([p.grad.flatten() for p in bucket])
            self.travelling.append((bucket, flat, dist.all_reduce(flat, async_op=True)))

    def finish(self):
        for bucket, flat, work in self.travelling:
            work.wait()
            flat /= dist.get_world_size()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                p.grad.copy_(part.view_as(p))
        self.missing = [len(bucket) for bucket in self.buckets]
        self.travelling.clear()


EQUAL = {
    "35: `zip(bucket, flat.split([p.numel() for p in bucket]), strict=True)` without strict": "both are equally long",
    "35: True → False": "both are equally long",
    "8: __init__ with `dist.barrier()`": "a constructor may talk to the other ranks",
    "8: __init__ with `[p.register_hook(lambda g: g) for p in model.parameters() if p.requires_grad]`": "it may add hooks",
    "24: ready with `torch.set_grad_enabled(not torch.is_grad_enabled())`": "a hook of backward has "
    "a grad mode of its own, which autograd puts back",
}
FULL = "            if sum(p.nbytes for p in self.buckets[number]) >= cap:\n"
READY = "        self.missing[self.number[parameter]] -= 1\n"
WHILE = "        while len(self.travelling) < len(self.buckets) and self.missing[len(self.travelling)] == 0:\n"
FLAT = "            flat = torch.cat([p.grad.flatten() for p in bucket])\n"
WAIT = "            work.wait()\n"
MEAN = "            flat /= dist.get_world_size()\n"
BACK = "                p.grad.copy_(part.view_as(p))\n"
AGAIN = "        self.missing = [len(bucket) for bucket in self.buckets]\n        self.travelling.clear()\n"
REST = "        while len(self.travelling) < len(self.buckets):\n            self.launch()\n"
FINISH = "    def finish(self):\n"


# --- right, and written differently


@right("numbers in place of lists, hooks of the nodes, the last bucket is waited for first")
def bookkeeping_by_index():
    class Bucketed:
        def __init__(self, model, cap):
            self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
            self.parameters.reverse()
            self.bucket_of, filled, opened = [], [], {}
            for index, parameter in enumerate(self.parameters):
                number = opened.setdefault(parameter.dtype, len(filled))
                if number == len(filled):
                    filled.append(0)
                self.bucket_of.append(number)
                filled[number] += parameter.nbytes
                if filled[number] >= cap:
                    opened.pop(parameter.dtype)
                node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
                node.register_hook(lambda *_, index=index: self.ready(index))
                setattr(self, f"node_{index}", node)
            self.count = len(filled)
            self.arrived, self.vectors, self.works = [False] * len(self.parameters), [], []

        def members(self, number):
            return [index for index, of in enumerate(self.bucket_of) if of == number]

        def ready(self, index):
            self.arrived[index] = True
            for number in range(len(self.works), self.count):
                if not all(self.arrived[one] for one in self.members(number)):
                    return
                gradients = [self.parameters[one].grad.reshape(-1) for one in self.members(number)]
                self.vectors.append(torch.cat(gradients).div_(dist.get_world_size()))
                self.works.append(dist.all_reduce(self.vectors[-1], async_op=True))

        def finish(self):
            for number in reversed(range(self.count)):
                self.works[number].wait()
                place = 0
                for one in self.members(number):
                    gradient = self.parameters[one].grad
                    gradient.view(-1).copy_(self.vectors[number][place : place + gradient.numel()])
                    place += gradient.numel()
            self.arrived, self.vectors, self.works = [False] * len(self.parameters), [], []

    return (Bucketed,)


@right("gradients are views of their bucket's vector")
def views_of_one_vector():
    class Bucketed:
        def __init__(self, model, cap):
            grouped, current = [], {}
            for parameter in list(model.parameters())[::-1]:
                if parameter.requires_grad:
                    group = current.get(parameter.dtype)
                    if group is None:
                        current[parameter.dtype] = group = []
                        grouped.append(group)
                    group.append(parameter)
                    if sum(one.numel() * one.element_size() for one in group) >= cap:
                        current[parameter.dtype] = None
            self.buckets, self.views = [], {}
            for group in grouped:
                vector = torch.zeros(sum(one.numel() for one in group), dtype=group[0].dtype)
                place = 0
                for one in group:
                    self.views[one] = vector[place : place + one.numel()].view_as(one)
                    place += one.numel()
                    one.register_post_accumulate_grad_hook(self.ready)
                self.buckets.append((vector, group))
            self.there, self.works = set(), []

        def ready(self, parameter):
            if parameter.grad is not self.views[parameter]:
                self.views[parameter].copy_(parameter.grad)
                parameter.grad = self.views[parameter]
            self.there.add(parameter)
            while len(self.works) < len(self.buckets) and self.there.issuperset(self.buckets[len(self.works)][1]):
                vector = self.buckets[len(self.works)][0]
                vector /= dist.get_world_size()
                self.works.append(dist.all_reduce(vector, async_op=True))

        def finish(self):
            for work in self.works:
                work.wait()
            self.there, self.works = set(), []

    return (Bucketed,)


@right("a plan made by a function, gradients replaced, waits at the end of backward")
def a_plan():
    def plan(parameters, cap):
        buckets, filling = [], {}
        for parameter in parameters:
            bucket = filling.pop(parameter.dtype, None)
            if bucket is None:
                bucket = []
                buckets.append(bucket)
            bucket.append(parameter)
            if sum(one.nbytes for one in bucket) < cap:
                filling[parameter.dtype] = bucket
        return buckets

    class Bucketed:
        def __init__(self, model, cap):
            self.plan = plan([one for one in reversed(list(model.parameters())) if one.requires_grad], cap)
            for bucket in self.plan:
                for parameter in bucket:
                    parameter.register_post_accumulate_grad_hook(self.gradient_is_there)
            self.begin()

        def begin(self):
            self.waiting = [set(bucket) for bucket in self.plan]
            self.gone = []

        def gradient_is_there(self, parameter):
            next(waiting for waiting in self.waiting if parameter in waiting).remove(parameter)
            while len(self.gone) < len(self.plan) and not self.waiting[len(self.gone)]:
                vector = torch.nn.utils.parameters_to_vector([one.grad for one in self.plan[len(self.gone)]])
                self.gone.append((vector, dist.all_reduce(vector, op=dist.ReduceOp.AVG, async_op=True)))
            if len(self.gone) == len(self.plan):
                torch.autograd.Variable._execution_engine.queue_callback(self.arrive)

        def arrive(self):
            for bucket, (vector, work) in zip(self.plan, self.gone, strict=True):
                work.wait()
                for parameter, part in zip(bucket, vector.split([one.numel() for one in bucket]), strict=True):
                    parameter.grad = part.reshape(parameter.shape).clone()
            self.begin()

        def finish(self):
            pass

    return (Bucketed,)


@right("a bucket is an object, on the side of which the parameter is found by its place")
def objects():
    class Bucket:
        def __init__(self):
            self.parameters, self.ready, self.vector, self.work = [], 0, None, None

        def send(self):
            sizes = [parameter.numel() for parameter in self.parameters]
            self.vector = torch.empty(sum(sizes), dtype=self.parameters[0].dtype)
            for part, parameter in zip(self.vector.split(sizes), self.parameters, strict=True):
                torch.div(parameter.grad.reshape(-1), dist.get_world_size(), out=part)
            self.work = dist.all_reduce(self.vector, async_op=True)

        def receive(self):
            self.work.wait()
            sizes = [parameter.numel() for parameter in self.parameters]
            with torch.no_grad():
                for part, parameter in zip(self.vector.split(sizes), self.parameters, strict=True):
                    parameter.grad.view(-1)[:] = part
            self.ready, self.vector, self.work = 0, None, None

    class Bucketed:
        def __init__(self, model, cap):
            self.buckets = []
            for dtype_and_parameter in [(p.dtype, p) for p in list(model.parameters())[::-1] if p.requires_grad]:
                dtype, parameter = dtype_and_parameter
                fits = [b for b in self.buckets if b.parameters[0].dtype is dtype]
                if not fits or sum(p.nbytes for p in fits[-1].parameters) >= cap:
                    self.buckets.append(Bucket())
                    fits.append(self.buckets[-1])
                fits[-1].parameters.append(parameter)
                parameter.register_post_accumulate_grad_hook(lambda _, bucket=fits[-1]: self.arrived(bucket))

        def arrived(self, bucket):
            bucket.ready += 1
            for one in self.buckets:
                if one.ready < len(one.parameters):
                    break
                if one.work is None:
                    one.send()

        def finish(self):
            for bucket in self.buckets:
                bucket.receive()

    return (Bucketed,)


# --- wrong: which parameters share a bucket

wrong(
    "the first parameter first",
    "take the parameters in reverse order",
    {"reversed(list(model.parameters()))": "model.parameters()"},
)
wrong("the cap in elements", "the cap counts bytes, not elements", {FULL: FULL.replace("nbytes", "numel()")})
wrong("full is not enough", "a bucket that holds exactly the cap is full", {">= cap": "> cap"})
wrong("closes too early", "is closed before it would exceed the cap", {
    "            number = is_open": "            last = is_open.get(parameter.dtype)\n"
    "            if last is not None and sum(p.nbytes for p in self.buckets[last]) + parameter.nbytes > cap:\n"
    "                del is_open[parameter.dtype]\n            number = is_open", ">= cap": "> cap"
})  # fmt: skip
wrong("frozen counted", "cannot register a hook", {
    "            if not parameter.requires_grad:\n                continue\n": ""
})  # fmt: skip
wrong("the tied weight twice", "buckets are never launched", {
    "reversed(list(model.parameters()))": "reversed([p for _, p in model.named_parameters(remove_duplicate=False)])"
})  # fmt: skip
wrong("types mixed", "gradients of different types share a bucket", {"parameter.dtype": "None"})
wrong("one for each parameter", "there is one all_reduce for each parameter", {FULL: "            if True:\n"})
wrong("the last bucket lost", "buckets are never launched", {
    READY: READY + "        full = [b for b in self.buckets if sum(p.nbytes for p in b) >= self.cap]\n",
    "self.travelling) < len(self.buckets)": "self.travelling) < len(full)", "        self.buckets, self.number": "        self.cap = cap\n        self.buckets, self.number"
})  # fmt: skip
wrong("the order of filling", "in the order in which they were filled", {
    "        self.missing = [len(bucket) for bucket in self.buckets]\n        self.travelling = []\n":
    "        still = list(is_open.values())\n        size = lambda number: self.closed.index(number) if number in self.closed else 99 + number\n"
    "        order = sorted(range(len(self.buckets)), key=size)\n        self.buckets = [self.buckets[n] for n in order]\n"
    "        self.number = {p: n for n, bucket in enumerate(self.buckets) for p in bucket}\n"
    "        self.missing = [len(bucket) for bucket in self.buckets]\n        self.travelling = []\n",
    "                del is_open[parameter.dtype]\n": "                del is_open[parameter.dtype]\n                self.closed.append(number)\n",
    "        self.buckets, self.number, is_open = [], {}, {}\n": "        self.buckets, self.number, is_open, self.closed = [], {}, {}, []\n",
})  # fmt: skip

# --- wrong: when a bucket goes

wrong(
    "blocking",
    "this is a blocking DDP",
    {WHILE: "\n    def launch(self):\n" + WHILE, FINISH: FINISH + "        self.launch()\n"},
)
wrong("blocking call in the hook", "is called without async_op=True in a hook", {
    "dist.all_reduce(flat, async_op=True)": "dist.all_reduce(flat)", WAIT: ""
})  # fmt: skip
wrong("all at the end of backward", "are launched when the last gradient is ready", {
    WHILE: "        if any(self.missing):\n            return\n" + WHILE
})  # fmt: skip
wrong("if in place of while", "too late: a bucket goes as soon as its last gradient is ready", {
    WHILE: WHILE.replace("while", "if") + "            self.launch()\n\n    def launch(self):\n        if True:\n",
    FINISH: FINISH + REST,
})  # fmt: skip
wrong("launched one late", "too late: a bucket goes as soon as", {
    READY + WHILE: WHILE + "            self.launch()\n" + READY + "\n    def launch(self):\n        if True:\n",
    FINISH: FINISH + REST,
})  # fmt: skip
wrong("launched too early", "is not there yet", {
    "== 0:": "<= 1:", FLAT: FLAT.replace("p.grad.flatten()", "(torch.zeros_like(p) if p.grad is None else p.grad).flatten()")
})  # fmt: skip
wrong("counts once for ever", "too early", {
    AGAIN: "        self.travelling.clear()\n", "== 0:": "<= 0:",
    FLAT: FLAT.replace("p.grad.flatten()", "(torch.zeros_like(p) if p.grad is None else p.grad).flatten()"),
})  # fmt: skip
wrong("each when it is full", "launched in another order: bucket 0 first", {
    WHILE: "        if self.missing[self.number[parameter]] == 0:\n",
    "            bucket = self.buckets[len(self.travelling)]\n": "            bucket = self.buckets[self.number[parameter]]\n",
})  # fmt: skip
wrong("waits for the bucket before", "waits before the last gradient was ready", {
    FLAT: "            if self.travelling:\n                self.travelling[-1][2].wait()\n" + FLAT
})  # fmt: skip

# --- wrong: waiting, and the numbers

wrong(
    "never waits", "never waits for", {WAIT: "", MEAN: "", FLAT: FLAT + "            flat /= dist.get_world_size()\n"}
)
wrong("divides what travels", "changes a tensor while all_reduce is still using it", {
    MEAN: "", "async_op=True)))\n": "async_op=True)))\n            flat /= dist.get_world_size()\n"
})  # fmt: skip
wrong("sum", "is the sum over the ranks: divide by the world size", {MEAN: ""})
wrong("divides twice", "is divided by the world size twice", {MEAN: MEAN + MEAN})
wrong("two ranks always", "the gradient of", {"/= dist.get_world_size()": "/= 2"})
wrong(
    "never copied back",
    "is still this rank's own: the mean does not arrive in `.grad`",
    {BACK: "                pass\n"},
)
wrong(
    "split in another order",
    "the gradient of",
    {
        "in zip(bucket, flat.split([p.numel() for p in bucket])": "in zip(bucket[::-1], flat.split([p.numel() for p in bucket[::-1]])"
    },
)
wrong("in float32", "rounding explains", {BACK: "                p.grad.copy_(part.view_as(p).float())\n"})
wrong(
    "eval",
    "is in another mode",
    {
        FINISH: FINISH + "        self.model.eval()\n",
        "        self.travelling = []\n": "        self.travelling, self.model = [], model\n",
    },
)
wrong("a history is kept", "keeps more tensors after every call", {
    MEAN: MEAN + "            self.all = [*getattr(self, 'all', []), flat]\n"
})  # fmt: skip
wrong("the library", "DistributedDataParallel, which does the exercise", {
    "        self.travelling = []\n": "        self.travelling = []\n        torch.nn.parallel.DistributedDataParallel(model)\n"
})  # fmt: skip
