"""Exercise 2 of the lab on buckets and overlap. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong

HOOKS = "        for parameter in self.number:\n            parameter.register_post_accumulate_grad_hook(self.ready)\n"
WALK = """        seen, to_visit = set(), [loss.grad_fn]
        while to_visit:
            node = to_visit.pop()
            if node is not None and node not in seen:
                seen.add(node)
                to_visit += [before for before, _ in node.next_functions]
"""
FOUND = '        self.used = {node.variable for node in seen if hasattr(node, "variable")}\n'
MARK = "        for parameter in self.number:\n            if parameter not in self.used:\n                self.ready(parameter)\n"
ASK = "        dist.all_reduce(flags)\n"
OTHERS = "Ranks have used other parts, and yet all of them start bucket 0"


@right("flags travel in the buckets, beside the gradients")
def flags_in_the_buckets():
    class FindingUnused:
        def __init__(self, model, buckets):
            self.buckets, self.works = buckets, {}
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(self.one_more)

        def prepare(self, loss):
            nodes = {loss.grad_fn: None}
            fresh = [loss.grad_fn]
            while fresh:
                fresh = list({before for node in fresh for before, _ in node.next_functions if before} - nodes.keys())
                nodes.update(dict.fromkeys(fresh))
            self.reached = {node.variable for node in nodes if hasattr(node, "variable")}
            self.there = set()
            self.one_more(None)

        def one_more(self, parameter):
            self.there.add(parameter)
            for number, bucket in enumerate(self.buckets):
                if number in self.works:
                    continue
                if not all(p in self.there or p not in self.reached for p in bucket):
                    return
                parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
                flags = torch.tensor([float(p in self.reached) for p in bucket], dtype=bucket[0].dtype)
                flat = torch.cat([*(part.flatten() for part in parts), flags])
                self.works[number] = flat, dist.all_reduce(flat, async_op=True)

        def finish(self):
            for number, (flat, work) in sorted(self.works.items()):
                work.wait()
                bucket = self.buckets[number]
                *parts, flags = flat.split([*(p.numel() for p in bucket), len(bucket)])
                for p, part, users in zip(bucket, parts, flags.tolist(), strict=True):
                    p.grad = (part / dist.get_world_size()).view_as(p) if users else None
            self.works = {}

    return (FindingUnused,)


@right("asks autograd in the first hook which nodes it is going to run")
def asks_autograd():
    class FindingUnused:
        def __init__(self, model, buckets):
            self.buckets = buckets
            self.parameters = [p for bucket in buckets for p in bucket]
            self.nodes = {p: torch.autograd.graph.get_gradient_edge(p).node for p in self.parameters}
            for p in self.parameters:
                p.register_post_accumulate_grad_hook(self.hook)

        def prepare(self, loss):
            self.pending, self.sent = None, []

        def hook(self, parameter):
            if self.pending is None:
                self.pending = {p for p in self.parameters if torch._C._will_engine_execute_node(self.nodes[p])}
                self.used = torch.tensor([p in self.pending for p in self.parameters]).int()
            self.pending.discard(parameter)
            while len(self.sent) < len(self.buckets) and self.pending.isdisjoint(self.buckets[len(self.sent)]):
                bucket = self.buckets[len(self.sent)]
                flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).view(-1) for p in bucket])
                self.sent.append([flat, dist.all_reduce(flat, async_op=True)])

        def finish(self):
            dist.all_reduce(self.used)
            users = iter(self.used.tolist())
            for bucket, (flat, work) in zip(self.buckets, self.sent, strict=True):
                work.wait()
                for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                    if next(users):
                        p.grad = part.reshape(p.shape).div_(dist.get_world_size())
            self.sent.clear()

    return (FindingUnused,)


wrong("no search: a bucket that lacks one never goes", OTHERS, {MARK: ""})
wrong("looks in the first step only", OTHERS, {
    FOUND: FOUND.replace("= {", "= self.used if hasattr(self, 'used') else {")
})  # fmt: skip
wrong("calls itself", "raised RecursionError", {
    WALK: "        seen = set()\n\n        def visit(node):\n            if node is not None and node not in seen:\n"
    "                seen.add(node)\n                for before, _ in node.next_functions:\n"
    "                    visit(before)\n\n        visit(loss.grad_fn)\n"
})  # fmt: skip
wrong("what layers have run is used", OTHERS, {
    HOOKS: HOOKS + "        self.ran = set()\n        for module in model.modules():\n"
    "            module.register_forward_hook(lambda module, *_: self.ran.update(module.parameters(recurse=False)))\n",
    FOUND: "        self.used = set(self.ran)\n        self.ran.clear()\n",
})  # fmt: skip
wrong(
    "flags that are True and are added",
    "with 256 ranks the sum is 0 again",
    {", dtype=torch.int32)\n" + ASK: ")\n" + ASK},
)
