"""Exercise 5 of the lab on the GIL and reference counts: errors that hold on to a step's tensors."""

# ruff: noqa: F401 (modules that changed answers use)
import gc
import sys
import traceback

from known_answers import right, wrong


def train_through_errors(train_step, batches):
    errors = []
    for number, (x, y) in enumerate(batches):
        try:
            train_step(x, y)
        except ValueError as error:
            errors.append((number, str(error)))
    return errors


KEEP = "            errors.append((number, str(error)))\n"
EXCEPT = "        except ValueError as error:\n"
RETURN = "    return errors"
LATER = {"str(error)": "error", RETURN: "    return [(number, str(error)) for number, error in errors]"}


# --- right, and written differently

right("lists instead of pairs", {"(number, str(error))": "[number, format(error)]"})
right("frames are cleared", {KEEP: "            traceback.clear_frames(error.__traceback__)\n" + KEEP})
right("without the traceback", LATER | {"(number, error))": "(number, error.with_traceback(None)))"})
right("by number", {
    "number, (x, y) in enumerate(batches)": "number in range(len(batches))", "train_step(x, y)": "train_step(*batches[number])"
})  # fmt: skip
right("other errors go through by hand", {
    "except ValueError as error": "except BaseException as error", KEEP: "            if not isinstance(error, ValueError):\n                raise\n" + KEEP
})  # fmt: skip
right(
    "the error's name goes",
    {KEEP: "            text = f'{error}'\n            del error\n            errors.append((number, text))\n"},
)


@right("a dict, and a function for each step")
def with_a_dict():
    def text_of(step, batch):
        try:
            step(*batch)
        except ValueError as error:
            return str(error)

    def train_through_errors(train_step, batches):
        texts = {number: text_of(train_step, batch) for number, batch in enumerate(batches)}
        return [pair for pair in texts.items() if pair[1] is not None]

    return (train_through_errors,)


# --- wrong

HOLDS = "an error stays, and with it its traceback"
wrong("unchanged", HOLDS, LATER)
wrong("the error is deleted", HOLDS, {KEEP: KEEP + "            del error\n"} | LATER)
wrong("sys.exc_info", HOLDS, {
    "str(error)": "sys.exc_info()", RETURN: "    return [(number, str(error[1])) for number, error in errors]"
})  # fmt: skip
wrong(
    "the traceback is kept",
    HOLDS,
    {"    errors = []\n": "    errors, kept = [], []\n", KEEP: KEEP + "            kept.append(error.__traceback__)\n"},
)
wrong(
    "the last error is kept",
    HOLDS,
    {KEEP: "            last = error\n            errors.append((number, str(last)))\n"},
)
wrong("collected", HOLDS, {KEEP: KEEP + "            gc.collect()\n"} | LATER)
wrong("the error refers to itself", HOLDS, {KEEP: KEEP + "            error.me = error\n"})
wrong("swept up although nothing leaks", "calls gc.collect()", {KEEP: KEEP + "            gc.collect()\n"})
wrong(
    "only the last error's text lives",
    "these are not the numbers of the broken batches",
    {KEEP: "            errors = [(number, str(error))]\n"},
)
wrong("the last error lives on", HOLDS, {
    "def train": "LAST = {}\n\n\ndef train", KEEP: KEEP + "            LAST[0] = error\n"
})  # fmt: skip
wrong("counted from one", "batches are counted from 0", {"enumerate(batches)": "enumerate(batches, 1)"})
wrong(
    "all numbers",
    "these are not the numbers of the broken batches",
    {RETURN: "    return [(n, text) for n, (_, text) in enumerate(errors)]"},
)
wrong("the kind", "what str(error) gives", {"str(error)": "type(error).__name__"})
wrong("repr", "what str(error) gives", {"str(error)": "repr(error)"})
wrong("the first argument", "what str(error) gives", {"str(error)": "str((*error.args, '')[0])"})
wrong("the first line", "what str(error) gives", {"str(error)": "str(error).split('\\n')[0]"})
wrong("without spaces at the ends", "what str(error) gives", {"str(error)": "str(error)[:20]"})
wrong("stripped", "what str(error) gives", {"str(error)": "str(error).strip()"})
wrong(
    "only errors that have a text",
    "these are not the numbers of the broken batches",
    {KEEP: "            if str(error):\n    " + KEEP},
)
wrong("only numbers", "a list of pairs", {"(number, str(error))": "number"})
wrong("a dict", "a list of pairs", {RETURN: "    return dict(errors)"})
wrong("a generator", "a list of pairs", {RETURN: "    return (pair for pair in errors)"})
wrong("stops", "each batch is trained on once", {KEEP: KEEP + "            break\n"})
wrong(
    "tries again",
    "each batch is trained on once",
    {
        KEEP: KEEP
        + "            try:\n                train_step(x, y)\n            except ValueError:\n                pass\n"
    },
)
wrong("swallows everything", "any other error must come out", {"except ValueError": "except Exception"})
wrong("swallows even an interrupt", "any other error must come out", {"except ValueError": "except BaseException"})
wrong(
    "swallows a missing key",
    "any other error must come out",
    {"except ValueError": "except (ValueError, KeyError)"},
)
wrong(
    "only ValueError itself",
    "raised",
    {EXCEPT: EXCEPT + "            if type(error) is not ValueError:\n                raise\n"},
)
wrong(
    "an error of another kind goes under",
    "any other error must come out",
    {EXCEPT: "        except AttributeError:\n            pass\n" + EXCEPT},
)
wrong(
    "sys.exit goes under",
    "any other error must come out",
    {EXCEPT: "        except SystemExit:\n            pass\n" + EXCEPT},
)
wrong("None where nothing is broken", "returns a list of pairs", {RETURN: "    return errors or None"})
wrong("another error comes out", "must come out as it is", {
    KEEP: KEEP + "        except BaseException as other:\n            raise SystemError from other\n"
})  # fmt: skip
wrong("goes on and raises at the end", "no further batch", {
    "    errors = []\n": "    errors, others = [], []\n",
    KEEP: KEEP + "        except BaseException as other:\n            others.append(other)\n",
    RETURN: "    if others:\n        raise others[0]\n    return errors",
})  # fmt: skip
wrong(
    "the other way round",
    "in their order",
    {"enumerate(batches)": "reversed(list(enumerate(batches)))", RETURN: "    return errors[::-1]"},
)
wrong("batches thrown away", "is not as before", {RETURN: "    batches.clear()\n    return errors"})
wrong("broken batches are repaired", "has other numbers than before", {KEEP: KEEP + "            y.zero_()\n"})
wrong(
    "the collector stays off",
    "leaves Python's settings other",
    {"    errors = []\n": "    gc.disable()\n    errors = []\n"},
)


@wrong("StopIteration ends map in silence", "any other error must come out")
def map_ends():
    def train_through_errors(train_step, batches):
        def attempt(numbered):
            number, (x, y) = numbered
            try:
                train_step(x, y)
            except ValueError as error:
                return number, str(error)

        return [one for one in map(attempt, enumerate(batches)) if one is not None]

    return (train_through_errors,)
