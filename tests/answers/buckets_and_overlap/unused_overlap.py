"""Exercise 2 of the lab on buckets and overlap. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong

HOOKS = "        for parameter in self.number:\n            parameter.register_post_accumulate_grad_hook(self.ready)\n"
RESET = "        self.missing = [len(bucket) for bucket in self.buckets]\n        self.travelling = []\n        seen, to_visit"
WALK = """        seen, to_visit = set(), [loss.grad_fn]
        while to_visit:
            node = to_visit.pop()
            if node is not None and node not in seen:
                seen.add(node)
                to_visit += [before for before, _ in node.next_functions]
"""
FOUND = '        self.used = {node.variable for node in seen if hasattr(node, "variable")}\n'
MARK = "        for parameter in self.number:\n            if parameter not in self.used:\n                self.ready(parameter)\n"
PUT = "            flat = torch.cat([(p.grad if p in self.used else torch.zeros_like(p)).flatten() for p in bucket])\n"
START = PUT + "            self.travelling.append((bucket, flat, dist.all_reduce(flat, async_op=True)))\n"
FLAGS = "        flags = torch.tensor([parameter in self.used for parameter in self.number], dtype=torch.int32)\n"
ASK = "        dist.all_reduce(flags)\n"
OTHERS = "Ranks have used other parts, and yet all of them start bucket 0"


@right("as in torch: flags travel from the start, what is unused is ready in the first hook, callback at the end")
def as_in_torch():
    class FindingUnused:
        def __init__(self, model, buckets):
            self.buckets = [list(bucket) for bucket in buckets]
            self.place = {p: (n, k) for n, bucket in enumerate(buckets) for k, p in enumerate(bucket)}
            for parameter in self.place:
                parameter.register_post_accumulate_grad_hook(self.hook)

        def prepare(self, loss):
            from collections import deque

            leaves, queue = [], deque([loss.grad_fn])
            visited = {loss.grad_fn}
            while queue:
                node = queue.popleft()
                if type(node).__name__ == "AccumulateGrad":
                    leaves.append(node.variable)
                for before, _ in node.next_functions:
                    if before is not None and before not in visited:
                        visited.add(before)
                        queue.append(before)
            found = set(map(id, leaves))
            self.unused = [parameter for parameter in self.place if id(parameter) not in found]
            self.waiting = [set(bucket) for bucket in self.buckets]
            self.next, self.sent, self.marked = 0, [], False
            self.flags = torch.tensor([float(id(parameter) in found) for parameter in self.place])
            self.asking = dist.all_reduce(self.flags, op=dist.ReduceOp.MAX, async_op=True)

        def hook(self, parameter):
            if not self.marked:
                self.marked = True
                torch.autograd.Variable._execution_engine.queue_callback(self.end)
                for unused in self.unused:
                    self.waiting[self.place[unused][0]].discard(unused)
            self.waiting[self.place[parameter][0]].discard(parameter)
            while self.next < len(self.buckets) and not self.waiting[self.next]:
                bucket, self.next = self.buckets[self.next], self.next + 1
                flat = bucket[0].new_zeros(sum(p.numel() for p in bucket))
                for p, view in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                    if p.grad is not None:
                        view.copy_(p.grad.reshape(-1))
                self.sent.append((flat, dist.all_reduce(flat, op=dist.ReduceOp.AVG, async_op=True)))

        def end(self):
            self.asking.wait()
            anybody = dict(zip(self.place, self.flags.bool().tolist(), strict=True))
            for bucket, (flat, work) in zip(self.buckets, self.sent, strict=True):
                work.wait()
                start = 0
                for p in bucket:
                    part, start = flat[start : start + p.numel()].reshape(p.shape), start + p.numel()
                    if anybody[p]:
                        p.grad = part.clone()
            self.sent = []

        def finish(self):
            pass

    return (FindingUnused,)


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


@right("walks with a generator's stack, flags waited for first, means copied in place")
def copied_in_place():
    def nodes_of(loss):
        stack, known = [iter([loss.grad_fn])], set()
        while stack:
            node = next(stack[-1], stack)
            if node is stack:
                stack.pop()
            elif node is not None and node not in known:
                known.add(node)
                yield node
                stack.append(iter([pair[0] for pair in node.next_functions]))

    class FindingUnused:
        def __init__(self, model, buckets):
            self.buckets = tuple(map(tuple, buckets))
            self.order = [p for bucket in buckets for p in bucket]
            self.where = {p: n for n, bucket in enumerate(buckets) for p in bucket}
            self.handles = [p.register_post_accumulate_grad_hook(lambda p: self.arrived(p)) for p in self.order]

        def prepare(self, loss):
            used = {id(node.variable) for node in nodes_of(loss) if "AccumulateGrad" in node.name()}
            self.used = [id(p) in used for p in self.order]
            self.lacking = [sum(id(p) in used for p in bucket) for bucket in self.buckets]
            self.flying = []
            self.go()

        def arrived(self, p):
            self.lacking[self.where[p]] -= 1
            self.go()

        def go(self):
            for bucket, lacking in list(zip(self.buckets, self.lacking, strict=True))[len(self.flying) :]:
                if lacking:
                    break
                vector = torch.cat([torch.zeros(p.numel(), dtype=p.dtype) if p.grad is None else p.grad.ravel()
                                    for p in bucket]) / dist.get_world_size()  # fmt: skip
                self.flying.append((vector, dist.all_reduce(vector, async_op=True)))

        @torch.no_grad()
        def finish(self):
            flags = torch.tensor(self.used, dtype=torch.uint8)
            dist.all_reduce(flags, dist.ReduceOp.BOR, async_op=True).wait()
            known = dict(zip(self.order, flags, strict=True))
            for _ in range(len(self.flying)):
                vector, work = self.flying[0]
                work.wait()
                for p in self.buckets[-len(self.flying)]:
                    part, vector = vector[: p.numel()], vector[p.numel() :]
                    if known[p]:
                        p.grad = torch.empty_like(p) if p.grad is None else p.grad
                        p.grad.copy_(part.reshape(p.shape))
                del self.flying[0]

    return (FindingUnused,)


@right("zeros for what is unused are kept until the next step")
def kept_zeros():
    class FindingUnused:
        def __init__(self, model, buckets):
            self.buckets, self.order = buckets, [parameter for bucket in buckets for parameter in bucket]
            for parameter in self.order:
                parameter.register_post_accumulate_grad_hook(self.arrived)

        def prepare(self, loss):
            used = {node.variable for node in nodes_of(loss) if hasattr(node, "variable")}
            self.zeros = {parameter: torch.zeros_like(parameter) for parameter in self.order if parameter not in used}
            self.there, self.works = set(self.zeros), []
            self.go()

        def arrived(self, parameter):
            self.there.add(parameter)
            self.go()

        def go(self):
            while len(self.works) < len(self.buckets) and self.there.issuperset(self.buckets[len(self.works)]):
                parts = [self.zeros.get(one, one.grad).flatten() for one in self.buckets[len(self.works)]]
                flat = torch.cat(parts)
                self.works.append((flat, dist.all_reduce(flat, async_op=True)))

        def finish(self):
            flags = torch.tensor([parameter not in self.zeros for parameter in self.order]).int()
            dist.all_reduce(flags)
            for bucket, (flat, work) in zip(self.buckets, self.works, strict=True):
                work.wait()
                flat /= dist.get_world_size()
                for parameter, part in zip(bucket, flat.split([one.numel() for one in bucket]), strict=True):
                    parameter.grad = part.view_as(parameter)
            for parameter, by_how_many in zip(self.order, flags.tolist(), strict=True):
                if not by_how_many:
                    parameter.grad = None
            self.works = []

    def nodes_of(loss):
        seen, layer = set(), {loss.grad_fn}
        while layer:
            seen |= layer
            layer = {before for node in layer for before, _ in node.next_functions if before} - seen
        return seen

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
wrong("everything goes in finish()", "this is a blocking DDP", {
    HOOKS: "", MARK: "", FLAGS: "        for parameter in self.number:\n            self.ready(parameter)\n" + FLAGS
})  # fmt: skip
wrong("looks in the first step only", OTHERS, {
    FOUND: FOUND.replace("= {", "= self.used if hasattr(self, 'used') else {")
})  # fmt: skip
wrong("what was found is kept from step to step", OTHERS, {
    HOOKS: HOOKS + "        self.used = set()\n", FOUND: FOUND.replace("= {", "|= {")
})  # fmt: skip
wrong("calls itself", "raised RecursionError", {
    WALK: "        seen = set()\n\n        def visit(node):\n            if node is not None and node not in seen:\n"
    "                seen.add(node)\n                for before, _ in node.next_functions:\n"
    "                    visit(before)\n\n        visit(loss.grad_fn)\n"
})  # fmt: skip
wrong("a backward to see what is used", "backward runs twice through the graph", {
    WALK + FOUND: "        found = torch.autograd.grad(loss, list(self.number), retain_graph=True, allow_unused=True)\n"
    "        self.used = {p for p, gradient in zip(self.number, found) if gradient is not None}\n"
})  # fmt: skip
wrong("what layers have run is used", OTHERS, {
    HOOKS: HOOKS + "        self.ran = set()\n        for module in model.modules():\n"
    "            module.register_forward_hook(lambda module, *_: self.ran.update(module.parameters(recurse=False)))\n",
    FOUND: "        self.used = set(self.ran)\n        self.ran.clear()\n",
})  # fmt: skip
wrong("counts are never set back", "raised AttributeError", {
    HOOKS: HOOKS + RESET[: RESET.index("        self.trav")], RESET: RESET[RESET.index("        self.trav") :]
})  # fmt: skip
wrong("one for each parameter", "the all-reduces are not the buckets in their order", {
    HOOKS: "        self.buckets = [[p] for bucket in buckets for p in bucket]\n"
    "        self.number = {bucket[0]: n for n, bucket in enumerate(self.buckets)}\n" + HOOKS
})  # fmt: skip
wrong("waits in the hook", "waits for an all_reduce before backward has ended", {
    START: START + "            self.travelling[-1][2].wait()\n"
})  # fmt: skip
wrong("asks and waits before backward", "is called without async_op=True before backward has ended", {
    FOUND: FOUND + FLAGS.replace(" flags", " self.flags") + ASK.replace("flags", "self.flags"),
    FLAGS + ASK: "        flags = self.flags\n",
})  # fmt: skip
wrong(
    "flags that are True and are added",
    "with 256 ranks the sum is 0 again",
    {", dtype=torch.int32)\n" + ASK: ")\n" + ASK},
)
