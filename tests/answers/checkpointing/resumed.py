"""Exercise 2 of the lab on checkpoints: a training that is killed twenty times."""

import os
import pickle
import random
from pathlib import Path

import torch
from known_answers import right, wrong


def save(state, path):
    with open(f"{path}.tmp", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.tmp", path)


def train(task, folder):
    path, parts, done = f"{folder}/last.pt", task.new(), 0
    if os.path.exists(path):
        found = torch.load(path)
        done = found["done"]
        for name, part in parts.items():
            part.load_state_dict(found["parts"][name])
        torch.set_rng_state(found["torch"])
        random.setstate(found["python"])
    for number in range(done, task.steps):
        task.step(number, parts)
        if (number + 1) % task.every == 0:
            states = {name: part.state_dict() for name, part in parts.items()}
            random_numbers = {"torch": torch.get_rng_state(), "python": random.getstate()}
            save({"done": number + 1, "parts": states, **random_numbers}, path)
    return parts


EQUAL = {
    "24: train with `torch.manual_seed(0)`": "task.new() seeds, and what is resumed comes after it",
    "17: without `file.flush()`": "torch.save flushes the file that it has written",
    "17: without `os.fsync(file.fileno())`": "kills are played here; the power cut is exercise 1's",
    "20: `file.fileno()` → `file`": "os.fsync takes a file too, and asks it for its number",
}
PARTS = '        for name, part in parts.items():\n            part.load_state_dict(found["parts"][name])\n'
TORCH = '        torch.set_rng_state(found["torch"])\n'
PYTHON = '        random.setstate(found["python"])\n'
STEP = "        task.step(number, parts)\n"
WHEN = "        if (number + 1) % task.every == 0:\n"
BEGIN = '    path, parts, done = f"{folder}/last.pt", task.new(), 0\n'
SAVE = '            save({"done": number + 1, "parts": states, **random_numbers}, path)\n'


# --- right, and written differently


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


# --- wrong: what is saved

wrong("half a file", "inside a save", {
    "    with open(f\"{path}.tmp\", \"wb\") as file:\n        torch.save(state, file)\n": "    torch.save(state, path)\n    return\n    with open(path) as file:\n"
})  # fmt: skip
wrong("names sorted as text", "too much work is lost", {
    BEGIN: "    parts, done = task.new(), 0\n    names = sorted(name for name in os.listdir(folder) if name.endswith('.pt'))\n"
    "    path = f\"{folder}/{names[-1] if names else 'none'}\"\n",
    SAVE: SAVE.replace("path)", "f\"{folder}/step-{number + 1}.pt\")"),
})  # fmt: skip
wrong("one step again", "off by one", {'"done": number + 1': '"done": number'})
wrong(
    "the optimizer is forgotten",
    "the optimizer's state is not what it was",
    {
        "in parts.items():\n            part.": "in parts.items():\n            if name != 'optimizer':\n                part."
    },
)
wrong(
    "the schedule is forgotten",
    "the schedule's position is not what it was",
    {
        "in parts.items():\n            part.": "in parts.items():\n            if name != 'scheduler':\n                part."
    },
)
wrong(
    "the position is forgotten",
    "the position in the data is not what it was",
    {
        "in parts.items():\n            part.": "in parts.items():\n            if name != 'batches':\n                part."
    },
)
wrong("weights only", "the optimizer's state, the schedule's position, the position in the data, torch's", {
    "in parts.items():\n            part.": "in parts.items():\n            if name == 'model':\n                part.", TORCH: "", PYTHON: ""
})  # fmt: skip
wrong(
    "random numbers are forgotten",
    "torch's random numbers and Python's random numbers are not",
    {TORCH: "", PYTHON: ""},
)
wrong("random numbers of Python are forgotten", "Python's random numbers are not what", {PYTHON: ""})
wrong(
    "random numbers before the parts",
    "restored before task.new()",
    {TORCH + PYTHON: TORCH + PYTHON + "        parts = task.new()\n" + PARTS},
)
wrong("momentum in bfloat16", "the optimizer's state is not what it was", {
    SAVE: "            states['optimizer']['velocities'] = [v.bfloat16() for v in states['optimizer']['velocities']]\n" + SAVE
})  # fmt: skip


# --- wrong: when it is saved, and what is done again

wrong("saved at the end", "too much work is lost", {WHEN: "        if number + 1 == task.steps:\n"})
wrong("saved in each step", "a save every 5 steps is enough", {WHEN: "        if True:\n"})
wrong("saved every ten steps", "too much work is lost", {"% task.every == 0": "% (2 * task.every) == 0"})
wrong("every five steps always", "The case: 1 rank, training ranks: 1, steps", {"% task.every == 0": "% 5 == 0"})
wrong(
    "forty steps always", "The case: 1 rank, training ranks: 1, steps", {"range(done, task.steps)": "range(done, 40)"}
)
wrong(
    "trains on after the end",
    "is called with a number that is no step",
    {"range(done, task.steps)": "range(done, max(task.steps, done + 1))"},
)
wrong("nothing is returned", "train returns the parts that it has trained", {"    return parts": "    return None"})
wrong(
    "begins anew at the end",
    "at the end",
    {"    return parts": "    return parts if done < task.steps else task.new()"},
)
wrong(
    "another folder",
    "a file outside of the folder is written",
    {
        BEGIN: "    import tempfile\n"
        + BEGIN.replace(
            "{folder}/last.pt", "{tempfile.gettempdir()}/last-{os.path.basename(os.path.dirname(folder))}.pt"
        )
    },
)


# --- wrong: what else is changed

wrong(
    "eval",
    "the parameters, the optimizer's state and torch's random numbers are not what",
    {SAVE: SAVE + "            parts['model'].eval()\n"},
)
wrong(
    "eval at the end",
    "the model is in eval mode at the end",
    {"    return parts": "    parts['model'].eval()\n    return parts"},
)
wrong(
    "frozen at the end",
    "parameters of the model are frozen",
    {"    return parts": "    parts['model'].requires_grad_(False)\n    return parts"},
)
wrong(
    "parameters are replaced",
    "raised TypeError",
    {
        'part.load_state_dict(found["parts"][name])': "part.load_state_dict(found['parts'][name], **({'assign': True} if name == 'model' else {}))"
    },
)
wrong(
    "the working folder", "train leaves the working folder other than before", {BEGIN: BEGIN + "    os.chdir(folder)\n"}
)
wrong(
    "an environment variable",
    "train leaves the environment variables other",
    {BEGIN: BEGIN + "    os.environ['STEPS'] = '40'\n"},
)
wrong(
    "grad mode",
    "train leaves grad mode other",
    {"    return parts": "    torch.set_grad_enabled(False)\n    return parts"},
)
wrong(
    "the lecture's own",
    "the course's own code is no answer",
    {BEGIN: BEGIN + "    from utils.training import checkpoints\n"},
)


# --- what stays in the process, goes elsewhere, or never comes out

wrong(
    "the whole run is kept",
    "the training does not begin anew: does it keep something from the call before",
    {
        BEGIN: "    if hasattr(train, 'parts'):\n        return train.parts\n" + BEGIN,
        "    return parts": "    train.parts = parts\n    return parts",
    },
)
wrong(
    "the position is kept",
    "the training does not begin anew",
    {
        BEGIN: BEGIN + "    done = getattr(train, 'done', 0)\n",
        STEP: STEP + "        train.done = number + 1\n",
    },
)
wrong(
    "a log in the working folder",
    "a file outside of the folder is written",
    {STEP: STEP + "        with open('progress.log', 'a') as log:\n            log.write(f'{number}\\n')\n"},
)
wrong(
    "errors of a step are swallowed",
    "an error in task.step does not come out",
    {STEP: "        try:\n            task.step(number, parts)\n        except Exception:\n            pass\n"},
)
wrong(
    "an error ends the training early",
    "an error in task.step does not come out",
    {STEP: "        try:\n            task.step(number, parts)\n        except ArithmeticError:\n            break\n"},
)
wrong("what was read first is kept", "at last with the first folder again", {
    "found = torch.load(path)": "found = train.__dict__.setdefault('found', torch.load(path))"
})  # fmt: skip
wrong("states in place of parts", "train returns the parts that it has trained", {
    "    return parts": "    return {name: part.state_dict() for name, part in parts.items()}"
})  # fmt: skip
wrong("kept by the folder's name", "the training does not begin anew", {
    "def train": "KEPT = {}\n\n\ndef train",
    BEGIN: "    if folder in KEPT:\n        return KEPT[folder]\n" + BEGIN, "    return parts": "    KEPT[folder] = parts\n    return parts",
})  # fmt: skip
wrong("the last checkpoint goes after the end", "or lose its last checkpoint", {
    "    return parts": "    if done >= task.steps and os.path.exists(path):\n        os.unlink(path)\n    return parts"
})  # fmt: skip
wrong("a step is tried again", "an error in task.step does not come out", {
    STEP: "        try:\n    " + STEP + "        except Exception:\n    " + STEP
})  # fmt: skip
wrong("KeyboardInterrupt ends it quietly", "that KeyboardInterrupt", {
    STEP: "        try:\n    " + STEP + "        except KeyboardInterrupt:\n            return parts\n"
})  # fmt: skip
wrong("another copy, elsewhere", "a file outside of the folder is written", {
    BEGIN: "    open('/dev/shm/copy.pt', 'wb').close()\n    os.unlink('/dev/shm/copy.pt')\n" + BEGIN
})  # fmt: skip
wrong(
    "the task is changed",
    "leaves `task` other than before",
    {"    return parts": "    task.every = 1\n    return parts"},
)


wrong(
    "half a file in the folder is taken for a checkpoint",
    "started again after a kill inside a save: train raised FileNotFoundError",
    {"    if os.path.exists(path):\n": "    if os.listdir(folder):\n"},
)
