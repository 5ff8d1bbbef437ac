"""Exercise 1 of the lab on buckets and overlap. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong

WHILE = "        while len(self.travelling) < len(self.buckets) and self.missing[len(self.travelling)] == 0:\n"
NEXT = "            bucket = self.buckets[len(self.travelling)]\n"
FLAT = "            flat = torch.cat([p.grad.flatten() for p in bucket])\n"
START = "            self.travelling.append((bucket, flat, dist.all_reduce(flat, async_op=True)))\n"
FINISH = "        for bucket, flat, work in self.travelling:\n"
WAIT = FINISH + "            work.wait()\n"


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


wrong("frozen counted", "cannot register a hook", {
    "            if not parameter.requires_grad:\n                continue\n": ""
})  # fmt: skip
wrong("blocking", "this is a blocking DDP", {
    WHILE: "\n    def launch(self):\n" + WHILE, WAIT: "        self.launch()\n" + WAIT
})  # fmt: skip
wrong("a blocking call in the hook", "is called without async_op=True before backward has ended", {
    START: START.replace(", async_op=True", ""), WAIT: FINISH
})  # fmt: skip
wrong("waits for the bucket before", "waits for an all_reduce before backward has ended", {
    NEXT + FLAT: NEXT + "            if self.travelling:\n                self.travelling[-1][2].wait()\n" + FLAT
})  # fmt: skip
wrong("the buckets are filled as gradients arrive", "the bytes of each all_reduce", {
    "        self.missing[self.number[parameter]] -= 1\n" + WHILE:
    "        self.arrived = [*getattr(self, 'arrived', []), parameter]\n"
    "        while self.arrived and sum(p.nbytes for p in self.arrived if p.dtype == parameter.dtype) >= self.cap:\n",
    NEXT + FLAT: "            bucket = [p for p in self.arrived if p.dtype == parameter.dtype]\n"
    "            self.arrived = [p for p in self.arrived if p.dtype != parameter.dtype]\n" + FLAT,
    "        self.buckets, self.number": "        self.cap = cap\n        self.buckets, self.number",
    WAIT: "        for dtype in {p.dtype for p in getattr(self, 'arrived', [])}:\n"
    "            bucket = [p for p in self.arrived if p.dtype == dtype]\n" + FLAT + START
    + "        self.arrived = []\n" + WAIT,
})  # fmt: skip
wrong("never waits", "never waits for all_reduce", {WAIT: FINISH})
wrong("divides what travels", "changed between the start of their all_reduce and its wait()", {
    START: START + "            flat /= dist.get_world_size()\n",
    WAIT + "            flat /= dist.get_world_size()\n": WAIT,
})  # fmt: skip
