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


def one_f_one_b_step(stages, batch, targets, loss_fn, micro_batches):
    p, m, last = len(stages), micro_batches, len(stages) - 1
    plans = [iter(schedule_1f1b(i, p, m)) for i in range(p)]
    following = [next(plan) for plan in plans]
    arrived = {(0, f"F{k}"): x for k, x in enumerate(batch.tensor_split(m))}
    arrived |= {(last, f"B{k}"): None for k in range(m)}
    targets_of = targets.tensor_split(m)
    graphs = [{} for _ in range(p)]
    total = torch.zeros((), device=targets.device)

    while any(following):
        for i in reversed(range(p)):  # another order of launching
            item = following[i]
            if item is None or (i, item) not in arrived:
                continue
            message, k = arrived.pop((i, item)), int(item[1:])
            if isinstance(message, tuple):
                message = receive(message)
            if item.startswith("F"):
                x = message.detach().requires_grad_(i > 0)
                y = stages[i](x)
                if i == last:
                    y = loss_fn(y, targets_of[k]) * (len(targets_of[k]) / len(targets))
                    total += y.detach()
                else:
                    arrived[i + 1, item] = send(y.detach(), f"simgpu:{i + 1}")
                graphs[i][k] = x, y
            else:
                x, y = graphs[i].pop(k)
                torch.autograd.backward(y, message)
                if i > 0:
                    arrived[i - 1, item] = send(x.grad, f"simgpu:{i - 1}")
            x = y = message = None
            following[i] = next(plans[i], None)
    return total
