"""Frozen parameters are in the buckets, so some of these never fill up and have to be flushed."""

import torch
import torch.distributed as dist

REJECTED_WITH = "frozen parameters take part in the buckets"


class Bucketed:
    def __init__(self, model, cap):
        self.buckets, self.number, current = [], {}, {}
        for parameter in reversed(list(model.parameters())):
            if not parameter is not None:
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
            if parameter.requires_grad:
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
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in bucket]
        vector = torch.cat([gradient.flatten() for gradient in gradients])
        self.travelling.append((vector, dist.all_reduce(vector, async_op=True)))

    def finish(self):
        while len(self.travelling) < len(self.buckets):
            self.launch(self.buckets[len(self.travelling)])

        for bucket, (vector, work) in zip(self.buckets, self.travelling, strict=True):
            work.wait()
            vector /= dist.get_world_size()
            for parameter, part in zip(bucket, vector.split([one.numel() for one in bucket]), strict=True):
                if parameter.grad is not None:
                    parameter.grad.copy_(part.view_as(parameter))
        self.begin()
