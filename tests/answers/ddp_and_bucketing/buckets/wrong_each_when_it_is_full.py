"""Each bucket goes when it is full, though one before it has not gone."""

import torch
import torch.distributed as dist

REJECTED_WITH = "they are launched in another order"


class Bucketed:
    def __init__(self, model, cap):
        self.buckets, self.number, current = [], {}, {}
        for parameter in reversed(list(model.parameters())):
            if not parameter.requires_grad:
                continue
            kind = parameter.dtype
            if kind not in current:
                current[kind] = len(self.buckets)
                self.buckets.append([])
            bucket = self.buckets[current[kind]]
            bucket.append(parameter)
            self.number[parameter] = current[kind]
            if sum(one.nbytes for one in bucket) >= cap:
                del current[kind]
            parameter.register_post_accumulate_grad_hook(self.ready)
        self.begin()

    def begin(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.travelling = []

    def ready(self, parameter):
        number = self.number[parameter]
        self.missing[number] -= 1
        if self.missing[number] == 0:
            self.launch(self.buckets[number])

    def launch(self, bucket):
        vector = torch.cat([parameter.grad.flatten() for parameter in bucket])
        self.travelling.append((bucket, vector, dist.all_reduce(vector, async_op=True)))

    def finish(self):
        for bucket, vector, work in self.travelling:
            work.wait()
            vector /= dist.get_world_size()
            for parameter, part in zip(bucket, vector.split([one.numel() for one in bucket]), strict=True):
                parameter.grad.copy_(part.view_as(parameter))
        self.begin()
