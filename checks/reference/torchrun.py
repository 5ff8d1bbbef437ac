import os


import socket


import torch


import torch.distributed as dist


from torch.nn import functional


from checks.labs import torchrun as check


from checks.labs.torchrun import show


def single_process(task):
    device = task.gpu(0)
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 10).to(device)
    for epoch in range(task.epochs):
        order = torch.randperm(task.samples, generator=torch.Generator().manual_seed(epoch))
        for step, batch in enumerate(order.split(task.batch)):
            images, labels = task.read(batch)
            loss = functional.cross_entropy(model(images.to(device)), labels.to(device))
            model.zero_grad()
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= task.lr * parameter.grad
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
    torch.save(model.state_dict(), task.path)


def main(task):
    ### BEGIN SOLUTION
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = task.gpu(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 10).to(device)
    for epoch in range(task.epochs):
        order = torch.randperm(task.samples, generator=torch.Generator().manual_seed(epoch))
        for step, batch in enumerate(order.split(task.batch)):
            images, labels = task.read(batch[rank::world_size])
            loss = functional.cross_entropy(model(images.to(device)), labels.to(device))
            model.zero_grad()
            loss.backward()
            mean_loss = loss.detach()
            for tensor in (mean_loss, *(parameter.grad for parameter in model.parameters())):
                dist.all_reduce(tensor, dist.ReduceOp.AVG)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= task.lr * parameter.grad
            if rank == 0:
                print(f"epoch {epoch} step {step} loss {mean_loss.item():.4f}")
    if rank == 0:
        torch.save(model.state_dict(), task.path)
    dist.destroy_process_group()


def torchrun_line():
    ### BEGIN SOLUTION
    return (
        "torchrun --nnodes=$NODES --nproc-per-node=$GPUS --max-restarts=1"
        ' --node-rank=$NODE --master-addr=$FIRST --master-port=$PORT "$@"'
    )


def broken_until(most, good, train_epoch, validate):
    for epoch in range(most):
        train_epoch()  # all-reduces gradients
        total, count = validate()
        if total / count < good:
            return epoch + 1
    return most


def try_until(train_until):
    losses = iter([[6.0, 4.0, 3.0], [9.0, 8.0, 2.0]][dist.get_rank()])  # after epochs 1, 2 and 3

    def train_epoch():
        dist.all_reduce(torch.ones(1))  # the gradients

    return train_until(3, 0.5, train_epoch, lambda: (next(losses), 10))


def train_until(most, good, train_epoch, validate):
    ### BEGIN SOLUTION
    for epoch in range(most):
        train_epoch()
        sums = torch.tensor(validate())
        dist.all_reduce(sums)
        total, count = sums.tolist()
        if total / count < good:
            return epoch + 1
    return most


def broken_shift(tensor):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(tensor)
    dist.send(tensor, (rank + 1) % world_size)
    dist.recv(received, (rank - 1) % world_size)
    return received


def shift(tensor):
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if world_size == 1:
        return tensor.clone()
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, (rank + 1) % world_size)
    dist.recv(received, (rank - 1) % world_size)
    sending.wait()
    return received


def broken_gather(predictions):
    parts = [torch.empty_like(predictions) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, predictions)
    return torch.cat(parts).tolist()


def try_gather(lengths):
    rank = dist.get_rank()
    return broken_gather(torch.arange(lengths[rank]) + 10 * rank)


def gather_all(predictions):
    ### BEGIN SOLUTION
    world_size = dist.get_world_size()
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(world_size)]
    dist.all_gather(lengths, torch.tensor([len(predictions)]))
    padded = torch.zeros(max(lengths), dtype=torch.int64)
    padded[: len(predictions)] = predictions
    parts = [torch.empty_like(padded) for _ in range(world_size)]
    dist.all_gather(parts, padded)
    return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])


def broken_epoch(batches, gradient, features, update):
    for batch in batches:
        try:
            mine = gradient(batch)
        except ValueError:
            continue  # the next batch
        dist.all_reduce(mine)
        update(mine / dist.get_world_size())


def try_epoch(train_epoch, rows):
    updates = []

    def gradient(batch):
        if batch is None:
            raise ValueError("a broken file")
        return torch.tensor([float(batch)])

    train_epoch(rows[dist.get_rank()], gradient, 1, lambda mean: updates.append(mean.item()))
    return updates


def train_epoch(batches, gradient, features, update):
    ### BEGIN SOLUTION
    for batch in batches:
        with_count = torch.zeros(features + 1)
        try:
            with_count[:-1] = gradient(batch)
            with_count[-1] = 1
        except ValueError:
            pass  # zeros take part
        dist.all_reduce(with_count)
        if with_count[-1] > 0:
            update(with_count[:-1] / with_count[-1])


def broken_store(host):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return dist.TCPStore(host, old_port, world_size, is_master=rank == 0)


def open_store(host):
    ### BEGIN SOLUTION
    port = torch.zeros(1, dtype=torch.int64)
    if dist.get_rank() == 0:
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        port[0] = store.port
    dist.broadcast(port, src=0)
    if dist.get_rank() > 0:
        store = dist.TCPStore(host, port.item())
    return store
