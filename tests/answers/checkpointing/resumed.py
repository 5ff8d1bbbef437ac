"""Exercise 2 of the lab on checkpoints: killed twenty times. What is not here is in the official solution."""

import os
import pickle
import random
from pathlib import Path

import torch
from known_answers import right, wrong

PARTS = '        for name, part in parts.items():\n            part.load_state_dict(found["parts"][name])\n'
TORCH = '        torch.set_rng_state(found["torch"])\n'
PYTHON = '        random.setstate(found["python"])\n'
STEP = "        task.step(number, parts)\n"
WHEN = "        if (number + 1) % task.every == 0:\n"
BEGIN = '    path, parts, done = f"{folder}/last.pt", task.new(), 0\n'
SAVE = '            save({"done": number + 1, "parts": states, **random_numbers}, path)\n'


@right("an object, a file for each checkpoint, a list of states")
def many_files():
    class Run:
        def __init__(self, task, folder):
            self.task, self.folder = task, Path(folder)
            self.parts = task.new()
            self.done = 0

        def resume(self):
            if files := sorted(self.folder.glob("*.checkpoint"), key=lambda path: int(path.stem)):
                saved = torch.load(files[-1], weights_only=False)
                self.done = int(files[-1].stem)
                for part, state in zip(self.parts.values(), saved["states"], strict=True):
                    part.load_state_dict(state)
                torch.random.set_rng_state(saved["generators"][0])
                random.setstate(saved["generators"][1])

        def save(self):
            generators = torch.random.get_rng_state(), random.getstate()
            saved = {"states": [part.state_dict() for part in self.parts.values()], "generators": generators}
            half = self.folder / "half"
            torch.save(saved, half)
            half.rename(self.folder / f"{self.done}.checkpoint")

    def train(task, folder):
        run = Run(task, folder)
        run.resume()
        while run.done < task.steps:
            task.step(run.done, run.parts)
            run.done += 1
            if run.done % task.every == 0:
                run.save()
        return run.parts

    return (train,)


@right("two files in turn, with pickle; the better one counts")
def two_copies():
    def train(task, folder):
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
            states = {name: part.state_dict() for name, part in parts.items()}
            saved = done, states, torch.get_rng_state(), random.getstate()
            with open(os.path.join(folder, names[done // task.every % 2]), "wb") as file:
                pickle.dump(saved, file)
                file.flush()
                os.fsync(file)
        return parts

    return (train,)


@right("a line in a log for each step, old checkpoints go a step later")
def log():
    def train(task, folder):
        parts = task.new()
        names = sorted(
            (name for name in os.listdir(folder) if name.startswith("done-")), key=lambda name: int(name[5:])
        )
        first = 0
        if names:
            first, states, generators = torch.load(os.path.join(folder, names[-1]))
            for part, state in zip(sorted(parts), states, strict=True):
                parts[part].load_state_dict(state)
            torch.set_rng_state(generators[0])
            random.setstate(generators[1])
        for step in range(first, task.steps):
            task.step(step, parts)
            with open(os.path.join(folder, "log.txt"), "a") as log:
                log.write(f"step {step} of process {os.getpid()}\n")
            for name in names[:-1]:
                os.unlink(os.path.join(folder, name))
            names = names[-1:]
            if (step + 1) % task.every == 0:
                saved = step + 1, [parts[name].state_dict() for name in sorted(parts)]
                torch.save((*saved, (torch.get_rng_state(), random.getstate())), os.path.join(folder, "new"))
                names.append(f"done-{step + 1}")
                os.rename(os.path.join(folder, "new"), os.path.join(folder, names[-1]))
        return parts

    return (train,)


@right("steps in blocks, named arguments, a link to the newest")
def blocks():
    def train(task, folder):
        here, parts = Path(folder), task.new()
        newest = here / "newest"
        begin = 0
        if newest.is_symlink():
            state = torch.load(newest.resolve())
            begin = state.pop("begin")
            torch.set_rng_state(state.pop("torch"))
            random.setstate(state.pop("python"))
            for name, one in state.items():
                parts[name].load_state_dict(one)
        while begin < task.steps:
            end = min(begin - begin % task.every + task.every, task.steps)
            for number in range(begin, end):
                task.step(number=number, parts=parts)
            begin = end
            if end % task.every == 0:
                state = {name: part.state_dict() for name, part in parts.items()} | {"begin": end}
                state |= {"torch": torch.get_rng_state(), "python": random.getstate()}
                torch.save(state, here / f"to-{end}")
                with (here / f"to-{end}").open("rb") as file:
                    os.fsync(file.fileno())
                (here / "link").unlink(missing_ok=True)
                (here / "link").symlink_to(here / f"to-{end}")
                (here / "link").replace(newest)
        return parts

    return (train,)


wrong("half a file", "inside a save", {
    '    temporary = f"{path}.tmp"\n': "    torch.save(state, path)\n    return\n    temporary = ''\n"
})  # fmt: skip
wrong("names sorted as text", "too much work is lost", {
    BEGIN: "    parts, done = task.new(), 0\n    names = sorted(name for name in os.listdir(folder) if name.endswith('.pt'))\n"
    "    path = f\"{folder}/{names[-1] if names else 'none'}\"\n",
    SAVE: SAVE.replace("path)", "f\"{folder}/step-{number + 1}.pt\")"),
})  # fmt: skip
wrong("one step again", "off by one", {'"done": number + 1': '"done": number'})
wrong("the optimizer is forgotten", "the optimizer's state", {
        "in parts.items():\n            part.": "in parts.items():\n            if name != 'optimizer':\n                part."
    })  # fmt: skip
wrong("the schedule is forgotten", "the schedule's position", {
        "in parts.items():\n            part.": "in parts.items():\n            if name != 'scheduler':\n                part."
    })  # fmt: skip
wrong("the position is forgotten", "the position in the data", {
        "in parts.items():\n            part.": "in parts.items():\n            if name != 'batches':\n                part."
    })  # fmt: skip
wrong(
    "random numbers are forgotten",
    "torch's random numbers and Python's random numbers are those of a new",
    {TORCH: "", PYTHON: ""},
)
wrong("random numbers of Python are forgotten", "Python's random numbers", {PYTHON: ""})
wrong(
    "random numbers before the parts",
    "restore them after task.new()",
    {TORCH + PYTHON: TORCH + PYTHON + "        parts = task.new()\n" + PARTS},
)
wrong("saved at the end", "too much work is lost", {WHEN: "        if number + 1 == task.steps:\n"})
wrong("saved in each step", "a save every 5 steps is enough", {WHEN: "        if True:\n"})
wrong("every five steps always", "too much work is lost", {"% task.every == 0": "% 5 == 0"})
wrong("forty steps always", "each step once", {"range(done, task.steps)": "range(done, 40)"})
wrong("nothing is returned", "returns the parts", {"    return parts": "    return None"})
wrong("eval", "comes back in eval mode", {SAVE: SAVE + "            parts['model'].eval()\n"})
wrong("the whole run is kept", "it does not begin anew", {
        BEGIN: "    if hasattr(train, 'parts'):\n        return train.parts\n" + BEGIN,
        "    return parts": "    train.parts = parts\n    return parts",
    })  # fmt: skip
wrong("eval at the end", "in eval mode", {"    return parts": "    parts['model'].eval()\n    return parts"})
wrong("frozen at the end", "comes back frozen", {
    "    return parts": "    parts['model'].requires_grad_(False)\n    return parts"
})  # fmt: skip
