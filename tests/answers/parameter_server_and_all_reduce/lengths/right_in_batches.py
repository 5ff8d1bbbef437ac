def check_length(tensor):
    size = dist.get_world_size()
    lengths = torch.zeros(size, dtype=torch.int64)
    lengths[rank] = tensor.numel()
    for step in range(size - 1):
        pair = [
            dist.P2POp(dist.isend, lengths[(rank - step) % size : (rank - step) % size + 1], (rank + 1) % size),
            dist.P2POp(dist.irecv, lengths[(rank - step - 1) % size : (rank - step - 1) % size + 1], (rank - 1) % size),
        ]
        for work in dist.batch_isend_irecv(pair):
            work.wait()
    if lengths.min() != lengths.max():
        raise ValueError(f"all tensors must have the same length, but the ranks have {lengths.tolist()}")
