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
