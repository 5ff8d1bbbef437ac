"""Gradients are views of their bucket's vector, as with gradient_as_bucket_view=True: nothing is copied back."""

import torch
import torch.distributed as dist


class Bucketed:
    def __init__(self, model, cap):
        self.buckets = []  # vector, parameters, views
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
        self.views = {}
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
