import os
import pickle
import random

import torch


def train(task, folder):
    """Two files in turn, with pickle; the better one counts. No rename: the other one is whole all the time."""
    parts, done, names = task.new(), 0, ("even", "odd")
    candidates = []
    for name in names:
        try:
            with open(os.path.join(folder, name), "rb") as file:
                candidates.append(pickle.load(file))
        except (OSError, EOFError, pickle.UnpicklingError):
            pass
    if candidates:
        done, states, rng, state_of_python = max(candidates, key=lambda saved: saved[0])
        for name in parts:
            parts[name].load_state_dict(states[name])
        torch.set_rng_state(rng)
        random.setstate(state_of_python)
    while done < task.steps:
        task.step(done, parts)
        done += 1
        if done % task.every:
            continue
        saved = (
            done,
            {name: part.state_dict() for name, part in parts.items()},
            torch.get_rng_state(),
            random.getstate(),
        )
        with open(os.path.join(folder, names[done // task.every % 2]), "wb") as file:
            pickle.dump(saved, file)
            file.flush()
            os.fsync(file)
    return parts
