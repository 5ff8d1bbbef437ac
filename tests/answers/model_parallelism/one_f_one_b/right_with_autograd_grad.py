import torch


def schedule_1f1b(stage, p, m):
    warm_up = min(p - 1 - stage, m)
    order = [f"F{k}" for k in range(warm_up)]
    for k in range(m - warm_up):
        order += [f"F{warm_up + k}", f"B{k}"]
    return order + [f"B{k}" for k in range(m - warm_up, m)]


def send(tensor, gpu):
    outgoing, incoming = torch.simgpu.Stream(tensor.device), torch.simgpu.Stream(gpu)
    outgoing.wait_stream(torch.simgpu.current_stream(tensor.device))
    with torch.simgpu.stream(outgoing), torch.simgpu.stream(incoming):
        copy = tensor.to(gpu)
    return copy, incoming.record_event()


def receive(message):
    copy, arrived = message
    torch.simgpu.current_stream(copy.device).wait_event(arrived)
    return copy


class Stage:
    def __init__(self, module, number, count):
        self.module, self.first, self.last = module, number == 0, number == count - 1
        self.before, self.after = f"simgpu:{number - 1}", f"simgpu:{number + 1}"
        self.graphs = []  # first in, first out

    def forward(self, x, loss):
        x = x if self.first else receive(x).requires_grad_()
        y = loss(self.module(x)) if self.last else self.module(x)
        self.graphs.append((x, y))
        return y.detach() if self.last else send(y.detach(), self.after)

    def backward(self, gradient):
        x, y = self.graphs.pop(0)
        weights = list(self.module.parameters())
        wanted = weights if self.first else [*weights, x]
        found = torch.autograd.grad(y, wanted, None if self.last else receive(gradient))
        for weight, one in zip(weights, found, strict=False):
            weight.grad = one if weight.grad is None else weight.grad + one
        return None if self.first else send(found[-1], self.before)


def one_f_one_b_step(stages, batch, targets, loss_fn, micro_batches):
    p, total = len(stages), 0
    xs, ys = batch.tensor_split(micro_batches), targets.tensor_split(micro_batches)
    stages = [Stage(stage, i, p) for i, stage in enumerate(stages)]
    plans = [schedule_1f1b(i, p, micro_batches) for i in range(p)]
    forward = [list(xs)] + [[] for _ in range(p)]
    backward = [[] for _ in range(p - 1)] + [[None] * micro_batches]
    while any(plans):
        for i, plan in enumerate(plans):
            if plan and plan[0][0] == "F" and forward[i]:
                k = int(plan.pop(0)[1:])
                out = stages[i].forward(forward[i].pop(0), lambda y, k=k: loss_fn(y, ys[k]) * len(ys[k]) / len(targets))
                if i < p - 1:
                    forward[i + 1].append(out)
                else:
                    total = total + out
            elif plan and plan[0][0] == "B" and backward[i]:
                plan.pop(0)
                gradient = stages[i].backward(backward[i].pop(0))
                if i > 0:
                    backward[i - 1].append(gradient)
    return total
