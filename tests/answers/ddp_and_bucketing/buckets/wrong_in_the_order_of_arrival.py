"""Buckets of what comes first: another rank may find another order."""

import torch
import torch.distributed as dist

REJECTED_WITH = "the buckets are filled in the order in which gradients arrive"


class Bucketed:
    def __init__(self, model, cap):
        self.cap, self.current, self.travelling = cap, {}, []
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.ready)

    def ready(self, parameter):
        bucket = self.current.setdefault(parameter.dtype, [])
        bucket.append(parameter)
        if sum(one.nbytes for one in bucket) >= self.cap:
            self.launch(self.current.pop(parameter.dtype))

    def launch(self, bucket):
        vector = torch.cat([parameter.grad.flatten() for parameter in bucket])
        self.travelling.append((bucket, vector, dist.all_reduce(vector, async_op=True)))

    def finish(self):
        for bucket in self.current.values():
            self.launch(bucket)
        self.current = {}
        for bucket, vector, work in self.travelling:
            work.wait()
            for parameter, part in zip(bucket, vector.split([one.numel() for one in bucket]), strict=True):
                parameter.grad = part.view_as(parameter) / dist.get_world_size()
        self.travelling = []
