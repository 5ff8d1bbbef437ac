import copy


import math


import os


import threading


import torch


import torch.distributed.checkpoint as dcp


from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


from checks.labs import sharded_checkpoints as check


from checks.labs.sharded_checkpoints.sharded_store import Reshard, make_store, share, tensors


def load_rows(store, rank, world_size):
    ### BEGIN SOLUTION
    indices = {file: store.index(file) for file in store.files()}
    loaded = {}
    for name, entry in next(iter(indices.values())).items():
        shape, dtype = entry["shape"], getattr(torch, entry["dtype"])
        row = math.prod(shape[1:]) * dtype.itemsize
        first, last = share(shape[0], rank, world_size)
        mine = torch.empty(last - first, *shape[1:], dtype=dtype)
        for file, index in indices.items():
            a, b = index[name]["rows"]
            start, stop = max(a, first), min(b, last)
            if start < stop:
                content = store.read(file, index[name]["offset"] + (start - a) * row, (stop - start) * row)
                piece = torch.frombuffer(content, dtype=dtype)
                mine[start - first : stop - first] = piece.reshape(stop - start, *shape[1:])
        loaded[name] = mine
    return loaded


class AsyncSaver:
    def __init__(self, write):
        ### BEGIN SOLUTION
        self.write, self.thread, self.error = write, None, None
        ### END SOLUTION

    def save(self, state, path):
        ### BEGIN SOLUTION
        self.wait()
        self.thread = threading.Thread(target=self._work, args=(copy.deepcopy(state), path))
        self.thread.start()
        ### END SOLUTION

    def wait(self):
        ### BEGIN SOLUTION
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        error, self.error = self.error, None
        if error is not None:
            raise error
        ### END SOLUTION

    ### BEGIN SOLUTION
    def _work(self, state, path):
        temporary = f"{path}.tmp"
        try:
            self.write(state, temporary)
            os.replace(temporary, path)
        except BaseException as error:
            self.error = error
            if os.path.exists(temporary):
                os.unlink(temporary)


def save(model, optimizer, folder):
    ### BEGIN SOLUTION
    parameters, adam = get_state_dict(model, optimizer)
    dcp.save({"model": parameters, "optimizer": adam}, checkpoint_id=folder)


def load(model, optimizer, folder):
    ### BEGIN SOLUTION
    parameters, adam = get_state_dict(model, optimizer)
    dcp.load({"model": parameters, "optimizer": adam}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=parameters, optim_state_dict=adam)
