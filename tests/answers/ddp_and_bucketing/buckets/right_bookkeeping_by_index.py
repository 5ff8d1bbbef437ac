"""Numbers in place of lists, hooks on the AccumulateGrad nodes, and the last bucket is waited for first."""

import torch
import torch.distributed as dist


class Bucketed:
    def __init__(self, model, cap):
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.parameters.reverse()
        self.bucket_of, filled, opened = [], [], {}
        for index, parameter in enumerate(self.parameters):
            number = opened.setdefault(parameter.dtype, len(filled))
            if number == len(filled):
                filled.append(0)
            self.bucket_of.append(number)
            filled[number] += parameter.nbytes
            if filled[number] >= cap:
                opened.pop(parameter.dtype)
            node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
            node.register_hook(lambda *_, index=index: self.ready(index))
            setattr(self, f"node_{index}", node)
        self.count = len(filled)
        self.arrived, self.vectors, self.works = [False] * len(self.parameters), [], []

    def members(self, number):
        return [index for index, of in enumerate(self.bucket_of) if of == number]

    def ready(self, index):
        self.arrived[index] = True
        for number in range(len(self.works), self.count):
            if not all(self.arrived[one] for one in self.members(number)):
                return
            gradients = [self.parameters[one].grad.reshape(-1) for one in self.members(number)]
            self.vectors.append(torch.cat(gradients).div_(dist.get_world_size()))
            self.works.append(dist.all_reduce(self.vectors[-1], async_op=True))

    def finish(self):
        for number in reversed(range(self.count)):
            self.works[number].wait()
            place = 0
            for one in self.members(number):
                gradient = self.parameters[one].grad
                gradient.view(-1).copy_(self.vectors[number][place : place + gradient.numel()])
                place += gradient.numel()
        self.arrived, self.vectors, self.works = [False] * len(self.parameters), [], []
