"""Hooks on the AccumulateGrad nodes, as the real DDP has them; divides before the launch; waits for the last first."""

import torch.distributed as dist


class Overlapped:
    def __init__(self, model):
        self.nodes, self.flying = [], {}
        for parameter in model.parameters():
            if not parameter.requires_grad:
                continue
            node = parameter.view_as(parameter).grad_fn.next_functions[0][0]
            node.register_hook(lambda *_, parameter=parameter: self.send(parameter))
            self.nodes.append(node)  # else it is made anew for each graph, without the hook

    def send(self, parameter):
        parameter.grad.mul_(1 / dist.get_world_size())
        self.flying[parameter] = dist.all_reduce(parameter.grad, async_op=True)

    def finish(self):
        while self.flying:
            self.flying.popitem()[1].wait()
