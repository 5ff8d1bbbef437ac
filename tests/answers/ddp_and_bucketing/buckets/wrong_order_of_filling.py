import torch
import torch.distributed as dist

REJECTED_WITH = (
    "the buckets are in the order in which they were filled: keep them in the order in which they were opened"
)


class Bucketed:
    def __init__(self, model, cap):
        self.buckets, current = [], {}
        for parameter in reversed(list(model.parameters())):
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.ready)
                bucket = current.setdefault(parameter.dtype, [])
                bucket.append(parameter)
                if sum(one.nbytes for one in bucket) >= cap:
                    self.buckets.append(current.pop(parameter.dtype))
        self.buckets += current.values()
        self.there, self.travelling = set(), []

    def ready(self, parameter):
        self.there.add(parameter)
        for bucket in self.buckets[len(self.travelling) :]:
            if not self.there.issuperset(bucket):
                break
            vector = torch.cat([one.grad.flatten() for one in bucket])
            self.travelling.append((vector, dist.all_reduce(vector, async_op=True)))

    def finish(self):
        for bucket, (vector, work) in zip(self.buckets, self.travelling, strict=True):
            work.wait()
            for parameter, part in zip(bucket, vector.split([one.numel() for one in bucket]), strict=True):
                parameter.grad = part.view_as(parameter) / dist.get_world_size()
        self.there, self.travelling = set(), []
