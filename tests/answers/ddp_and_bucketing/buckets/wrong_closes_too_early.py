import torch
import torch.distributed as dist

REJECTED_WITH = "a bucket is closed before it would exceed the cap"


class Bucketed:
    def __init__(self, model, cap):
        self.buckets, self.number, current = [], {}, {}
        for parameter in reversed(list(model.parameters())):
            if not parameter.requires_grad:
                continue
            kind = parameter.dtype
            if kind in current and sum(one.nbytes for one in self.buckets[current[kind]]) + parameter.nbytes > cap:
                del current[kind]
            if kind not in current:
                current[kind] = len(self.buckets)
                self.buckets.append([])
            bucket = self.buckets[current[kind]]
            bucket.append(parameter)
            self.number[parameter] = current[kind]
            if parameter.nbytes > cap:
                del current[kind]
            parameter.register_post_accumulate_grad_hook(self.ready)
        self.begin()

    def begin(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.travelling = []

    def ready(self, parameter):
        self.missing[self.number[parameter]] -= 1
        while len(self.travelling) < len(self.buckets) and self.missing[len(self.travelling)] == 0:
            self.launch(self.buckets[len(self.travelling)])

    def launch(self, bucket):
        vector = torch.cat([parameter.grad.flatten() for parameter in bucket])
        self.travelling.append((vector, dist.all_reduce(vector, async_op=True)))

    def finish(self):
        for bucket, (vector, work) in zip(self.buckets, self.travelling, strict=True):
            work.wait()
            vector /= dist.get_world_size()
            for parameter, part in zip(bucket, vector.split([one.numel() for one in bucket]), strict=True):
                parameter.grad.copy_(part.view_as(parameter))
        self.begin()
