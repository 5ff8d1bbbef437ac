import torch


import torch.distributed as dist


from utils import launch


from checks.labs import buckets_and_overlap as check


class Bucketed:
    def __init__(self, model, cap):
        ### BEGIN SOLUTION
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
        ### END SOLUTION

    def ready(self, parameter):
        ### BEGIN SOLUTION
        self.missing[self.number[parameter]] -= 1
        while len(self.travelling) < len(self.buckets) and self.missing[len(self.travelling)] == 0:
            bucket = self.buckets[len(self.travelling)]
            flat = torch.cat([p.grad.flatten() for p in bucket])
            self.travelling.append((bucket, flat, dist.all_reduce(flat, async_op=True)))
        ### END SOLUTION

    def finish(self):
        ### BEGIN SOLUTION
        for bucket, flat, work in self.travelling:
            work.wait()
            flat /= dist.get_world_size()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                p.grad.copy_(part.view_as(p))
        self.missing = [len(bucket) for bucket in self.buckets]
        self.travelling.clear()


def beside_the_real_one():
    from utils.ranks.recorder import record_collectives

    def train(wrap):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(3)])
        ddp = wrap(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sent = []
        for step in range(2):
            with record_collectives() as record:
                inputs = torch.randn(4, 512, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
                optimizer.zero_grad()
                (ddp if isinstance(ddp, torch.nn.Module) else model)(inputs).square().mean().backward()
                if isinstance(ddp, Bucketed):
                    ddp.finish()
                optimizer.step()
            sent.append([call.bytes for call in record.of("all_reduce")])
        return sent, [parameter.detach() for parameter in model.parameters()]

    ours, mine = train(lambda model: Bucketed(model, 2**20))
    real, theirs = train(lambda model: torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1))
    return ours, real, all(map(torch.equal, mine, theirs))


class FindingUnused:
    def __init__(self, model, buckets):
        ### BEGIN SOLUTION
        self.buckets = buckets
        self.number = {parameter: number for number, bucket in enumerate(buckets) for parameter in bucket}
        for parameter in self.number:
            parameter.register_post_accumulate_grad_hook(self.ready)
        ### END SOLUTION

    def prepare(self, loss):
        ### BEGIN SOLUTION
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
        ### END SOLUTION

    def ready(self, parameter):
        ### BEGIN SOLUTION
        self.missing[self.number[parameter]] -= 1
        while len(self.travelling) < len(self.buckets) and self.missing[len(self.travelling)] == 0:
            bucket = self.buckets[len(self.travelling)]
            flat = torch.cat([(p.grad if p in self.used else torch.zeros_like(p)).flatten() for p in bucket])
            self.travelling.append((bucket, flat, dist.all_reduce(flat, async_op=True)))
        ### END SOLUTION

    def finish(self):
        ### BEGIN SOLUTION
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
