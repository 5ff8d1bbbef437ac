"""Exercise 6 of the lab on DistributedDataParallel: unused parameters, and buckets that go while backward computes."""

import torch
import torch.distributed as dist
from known_answers import right, wrong


class FindingUnused:
    def __init__(self, model, buckets):
        self.buckets = buckets
        self.number = {parameter: number for number, bucket in enumerate(buckets) for parameter in bucket}
        for parameter in self.number:
            parameter.register_post_accumulate_grad_hook(self.ready)

    def prepare(self, loss):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.travelling = []
        seen, to_visit = set(), [loss.grad_fn]
        while to_visit:
            node = to_visit.pop()
            if node is not None and node not in seen:
                seen.add(node)
                to_visit += [before for before, _ in node.next_functions]
        self.used = {node.variable for node in seen if hasattr(node, "variable")}
        for parameter in self.number:
            if parameter not in self.used:
                self.ready(parameter)

    def ready(self, parameter):
        self.missing[self.number[parameter]] -= 1
        while len(self.travelling) < len(self.buckets) and self.missing[len(self.travelling)] == 0:
            bucket = self.buckets[len(self.travelling)]
            flat = torch.cat([(p.grad if p in self.used else torch.zeros_like(p)).flatten() for p in bucket])
            self.travelling.append((bucket, flat, dist.all_reduce(flat, async_op=True)))

    def finish(self):
        flags = torch.tensor([parameter in self.used for parameter in self.number], dtype=torch.int32)
        dist.all_reduce(flags)
        by_how_many = dict(zip(self.number, flags.tolist(), strict=True))
        for bucket, flat, work in self.travelling:
            work.wait()
            flat /= dist.get_world_size()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                if by_how_many[p] > 0:
                    p.grad = part.view_as(p)
        self.travelling.clear()


EQUAL = {
    "38: `flags.tolist()` → `flags`": "a tensor with one number compares like the number",
    "8: __init__ with `dist.barrier()`": "who is made may talk to the other ranks, as the real DDP does",
    "8: __init__ with `[p.register_hook(lambda g: g) for p in model.parameters() if p.requires_grad]`": "hooks are put on",
    "35: without `self.travelling.clear()`": "forgotten in the next prepare, as the text allows",
    "38: `zip(self.number, flags.tolist(), strict=True)` without strict": "the same",
    "42: `zip(bucket, flat.split([p.numel() for p in bucket]), strict=True)` without strict": "the same",
    "38: True → False": "there is a flag for each parameter",
    "42: True → False": "there is a part for each parameter",
}
HOOKS = "        for parameter in self.number:\n            parameter.register_post_accumulate_grad_hook(self.ready)\n"
RESET = "        self.missing = [len(bucket) for bucket in self.buckets]\n        self.travelling = []\n"
SEEN = "            if node is not None and node not in seen:\n"
MARK = "        for parameter in self.number:\n            if parameter not in self.used:\n                self.ready(parameter)\n"
WHILE = "        while len(self.travelling) < len(self.buckets) and self.missing[len(self.travelling)] == 0:\n"
PUT = "            flat = torch.cat([(p.grad if p in self.used else torch.zeros_like(p)).flatten() for p in bucket])\n"
ASK = "        dist.all_reduce(flags)\n"
ONLY = "                if by_how_many[p] > 0:\n                    p.grad = part.view_as(p)\n"
MEAN = "            flat /= dist.get_world_size()\n"
CLEAR = "        self.travelling.clear()\n"
WALK = """        seen, to_visit = set(), [loss.grad_fn]
        while to_visit:
            node = to_visit.pop()
            if node is not None and node not in seen:
                seen.add(node)
                to_visit += [before for before, _ in node.next_functions]
"""


# --- right, and written differently


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


# --- wrong: what is unused

wrong("no search: a bucket that lacks one never goes", "Ranks have used other parts", {MARK: ""})
wrong("what lacks goes in finish()", "is launched too late: a bucket goes as soon as", {
    MARK: "",
    "        flags = torch": "        for parameter in self.number.keys() - self.used:\n            self.ready(parameter)\n"
    "        flags = torch",
})  # fmt: skip
wrong("everything goes in finish()", "this is a blocking DDP", {
    HOOKS: "", MARK: "",
    "        flags = torch": "        for parameter in self.number:\n            self.ready(parameter)\n        flags = torch",
})  # fmt: skip
wrong("looks in the first step only", "has no attribute 'flatten'", {
    "        self.used = {": "        self.used = self.used if hasattr(self, 'used') else {",
})  # fmt: skip
wrong("follows only the first way", "is missing: other ranks have used this parameter", {
    "for before, _ in node.next_functions]": "for before, _ in node.next_functions[:1]]",
})  # fmt: skip
wrong("each way once more", "was not finished after", {SEEN: "            if node is not None:\n"})
wrong("calls itself", "raised RecursionError", {
    WALK: """        seen = set()

        def visit(node):
            if node is not None and node not in seen:
                seen.add(node)
                for before, _ in node.next_functions:
                    visit(before)

        visit(loss.grad_fn)
""",
})  # fmt: skip
wrong("a backward to see what is used", "backward runs twice through the graph", {
    WALK: "        seen = torch.autograd.grad(loss, list(self.number), retain_graph=True, allow_unused=True)\n",
    "{node.variable for node in seen if hasattr(node, \"variable\")}": "{p for p, g in zip(self.number, seen) if g is not None}",
})  # fmt: skip
wrong("what layers have run is used", "Ranks have used other parts", {
    HOOKS: HOOKS + "        self.ran = set()\n        for module in model.modules():\n"
    "            module.register_forward_hook(lambda module, *_: self.ran.update(module.parameters(recurse=False)))\n",
    "        self.used = {node.variable for node in seen if hasattr(node, \"variable\")}\n":
    "        self.used = set(self.ran)\n        self.ran.clear()\n",
})  # fmt: skip
wrong("what was found is kept from step to step", "Ranks have used other parts", {
    HOOKS: HOOKS + "        self.used = set()\n", "        self.used = {": "        self.used |= {",
})  # fmt: skip
wrong("counts are never set back", "raised AttributeError", {
    HOOKS: HOOKS + "        self.missing = [len(bucket) for bucket in self.buckets]\n",
    "        self.missing = [len(bucket) for bucket in self.buckets]\n        self.travelling": "        self.travelling",
})  # fmt: skip

# --- wrong: what travels, and when

wrong("a bucket of nothing but zeros does not go", "Ranks have used other parts", {
    PUT: "            if not self.used & set(bucket):\n"
    "                zeros = torch.zeros(sum(p.numel() for p in bucket), dtype=bucket[0].dtype)\n"
    "                self.travelling.append((bucket, zeros, type('Done', (), {'wait': lambda self: None})()))\n"
    "                continue\n" + PUT,
})  # fmt: skip
wrong("only what is there", "raised RuntimeError: split_with_sizes expects", {
    PUT: "            flat = torch.cat([p.grad.flatten() for p in bucket if p in self.used] + [torch.zeros(0)])\n",
})  # fmt: skip
wrong("what is unused goes first", "Ranks have used other parts", {
    WHILE: "        for number in [n for n, lacking in enumerate(self.missing) if lacking == 0]:\n            self.missing[number] = -1\n",
    "self.buckets[len(self.travelling)]\n            flat": "self.buckets[number]\n            flat",
})  # fmt: skip
wrong("one for each parameter", "what is launched are not the buckets", {
    HOOKS: "        self.buckets = [[p] for bucket in buckets for p in bucket]\n"
    "        self.number = {bucket[0]: n for n, bucket in enumerate(self.buckets)}\n" + HOOKS,
})  # fmt: skip
wrong("waits in the hook", "a wait while backward is still running", {
    "self.travelling.append((bucket, flat, dist.all_reduce(flat, async_op=True)))":
    "work = dist.all_reduce(flat, async_op=True)\n            work.wait()\n            self.travelling.append((bucket, flat, work))",
})  # fmt: skip
wrong("asks and waits before backward", "without async_op=True in prepare()", {
    MARK: "        self.flags = torch.tensor([p in self.used for p in self.number], dtype=torch.int32)\n"
    "        dist.all_reduce(self.flags)\n" + MARK,
    "        flags = torch.tensor([parameter in self.used for parameter in self.number], dtype=torch.int32)\n" + ASK:
    "        flags = self.flags\n",
})  # fmt: skip
wrong("never waits", "never waits for", {"            work.wait()\n": ""})
wrong(
    "the works are kept",
    "is still held after the third",
    {CLEAR: "        self.old = [*getattr(self, 'old', []), self.travelling]\n"},
)
wrong("a collective more", "calls dist.barrier, and dist.all_reduce is all that it may call", {
    CLEAR: CLEAR + "        dist.barrier()\n"
})  # fmt: skip

# --- wrong: the numbers, and what stays

wrong("zeros where nobody has used it", "leave its `.grad` None", {
    ONLY: "                p.grad = part.view_as(p)\n",
})  # fmt: skip
wrong("only what this rank has used", "is missing: other ranks have used this parameter", {
    "if by_how_many[p] > 0": "if p in self.used",
})  # fmt: skip
wrong("only what all have used", "is missing: other ranks have used this parameter", {
    ASK: ASK.replace("flags)", "flags, op=dist.ReduceOp.MIN)"),
})  # fmt: skip
wrong("the mean over those that used it", "is the mean over those ranks that used it", {
    MEAN: "", "part.view_as(p)": "part.view_as(p) / by_how_many[p]",
})  # fmt: skip
wrong("sum", "is the sum over the ranks: divide by the world size", {MEAN: ""})
wrong("divides twice", "is divided by the world size twice", {MEAN: MEAN + MEAN})
wrong("flags that overflow", "with 256 ranks the sum is 0 again", {"torch.int32": "torch.uint8"})
wrong("flags that are True and are added", "with 256 ranks the sum is 0 again", {", dtype=torch.int32": ""})
wrong("flags by value", "is missing: other ranks have used this parameter", {
    "[parameter in self.used for": "[parameter in self.used and bool(parameter.grad.any()) for",
    "if by_how_many[p] > 0": "if not by_how_many[p]:\n                    p.grad = None\n                else",
})  # fmt: skip
wrong("a lasting place for each bucket", "of the model of the step before is changed", {
    PUT: PUT.replace("flat =", "new =") + "            flat = places.setdefault((len(new), new.dtype), new)\n            flat.copy_(new)\n",
    "class Find": "places = {}\n\n\nclass Find",
})  # fmt: skip
wrong("the library", "DistributedDataParallel, which does the exercise", {
    HOOKS: HOOKS + "        torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)\n"
})  # fmt: skip
wrong("what is unused is frozen", "has another `requires_grad` than before", {
    ONLY: ONLY + "                else:\n                    p.requires_grad_(False)\n"
})  # fmt: skip
wrong("what the model says that it computes", "Ranks have used other parts", {
    "        self.used = {node.variable for node in seen if hasattr(node, \"variable\")}\n":
    "        named = [(name.split('.'), p) for name, p in self.model.named_parameters() if p.requires_grad]\n"
    "        self.used = {p for words, p in named if words[0] != 'branches' or int(words[1]) in self.model.order}\n",
    "        self.buckets = buckets\n": "        self.buckets, self.model = buckets, model\n",
})  # fmt: skip
wrong("all nodes that were ever seen", "its whole graph with it", {
    "        seen, to_visit = set(), [loss.grad_fn]\n":
    "        self.nodes = getattr(self, 'nodes', [])\n        seen, to_visit = set(), [loss.grad_fn]\n        self.nodes += to_visit\n",
})  # fmt: skip
