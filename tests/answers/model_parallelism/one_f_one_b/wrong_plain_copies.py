REJECTED_WITH = "a plain .to() keeps both GPUs waiting"


def schedule_1f1b(stage, p, m):
    warm_up = min(p - 1 - stage, m)
    order = [f"F{k}" for k in range(warm_up)]
    for k in range(m - warm_up):
        order += [f"F{warm_up + k}", f"B{k}"]
    return order + [f"B{k}" for k in range(m - warm_up, m)]


def send(tensor, gpu):
    return tensor.to(gpu)


def receive(copy):
    return copy


def one_f_one_b_step(stages, batch, targets, loss_fn, micro_batches):
    p, m = len(stages), micro_batches
    xs, ys = batch.tensor_split(m), targets.tensor_split(m)
    todo = [schedule_1f1b(i, p, m) for i in range(p)]
    inbox, kept, losses = {}, {}, []

    def forward(i, k):
        x = receive(inbox.pop((i, f"F{k}"))).requires_grad_() if i > 0 else xs[k]
        y = stages[i](x)
        if i < p - 1:
            inbox[i + 1, f"F{k}"] = send(y.detach(), f"simgpu:{i + 1}")
        else:
            y = loss_fn(y, ys[k]) * len(ys[k]) / len(targets)
            losses.append(y.detach())
        kept[i, k] = x, y

    def backward(i, k):
        x, y = kept.pop((i, k))
        y.backward(receive(inbox.pop((i, f"B{k}"))) if i < p - 1 else None)
        if i > 0:
            inbox[i - 1, f"B{k}"] = send(x.grad, f"simgpu:{i - 1}")

    while any(todo):
        for i in range(p):
            if todo[i]:
                kind, k = todo[i][0][0], int(todo[i][0][1:])
                begins_here = i == (0 if kind == "F" else p - 1)
                if begins_here or (i, todo[i][0]) in inbox:
                    todo[i].pop(0)
                    forward(i, k) if kind == "F" else backward(i, k)
    return sum(losses)
