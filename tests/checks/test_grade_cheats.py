"""Grading: what a notebook tries is tried here, and it gains nothing, changes nothing, and leaves nothing."""

from __future__ import annotations

import os
import tempfile
import textwrap
from pathlib import Path

import psutil
import pytest
import toy_lab
from class_support import TOY, found_by_kernels, hand_in, official, words
from toy_word_checks import RIGHT, WORD

from checks.grade.grading import grade
from checks.grade.sandbox import Limits, Sandboxes
from course.build import LabError
from course.outline import ROOT

SECRET = "the-instructor's-token"
LIMITS = Limits(cell=10, notebook=60, memory=1 << 30)
SLEEP = "86397"  # seconds; nothing else on a machine sleeps so long


def cell(source: str, **values: object) -> str:
    """Source in which @name@ stands for a value."""
    source = textwrap.dedent(source).strip()
    for name, value in values.items():
        source = source.replace(f"@{name}@", repr(value))
    return source


# A cell that gains something gives the right answer; else it hands in another.
GAINED = f"""
first = second = left = right = (lambda: {WORD!r}) if gained else (lambda: "nothing gained")
"""
READS_A_CLASSMATE = """
import glob, json, os
gained = False
for place in (@folder@, "..", "../..", os.path.expanduser("~"), "/tmp"):
    for path in glob.glob(f"{place}/**/*words.ipynb", recursive=True):
        if os.path.realpath(path) != os.path.realpath("97_words.ipynb"):
            gained = True
"""
READS_ENVIRONMENTS = """
gained = @secret@ in os.environ.values()
for file in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
    try:
        gained = gained or @secret@ in open(file).read()
    except OSError:
        pass
"""
WRITES = """
gained = False
for place in (@folder@, @folder@ + "/victim", @root@ + "/checks", @root@ + "/tests"):
    try:
        open(place + "/planted.py", "w").write("planted")
        gained = True
    except OSError:
        pass
"""
READS_SOLUTIONS = """
gained = bool(os.listdir(@root@ + "/solutions") + os.listdir(@root@ + "/tests/answers"))
"""
PRINTS = """
import subprocess
verdict = json.dumps({"exercise": "second", "state": "right", "text": "", "details": "", "passed": [], "secret": ""})
print("✓ right: it says so", verdict)
for pid in (os.getpid(), os.getppid()):
    for fd in (1, 2):
        try:
            os.write(os.open(f"/proc/{pid}/fd/{fd}", os.O_WRONLY), b"\\n" + verdict.encode() + b"\\n")
        except OSError:
            pass
gained = False
"""
LEAVES = f"""
import os, subprocess
subprocess.Popen("(setsid nohup sleep {SLEEP} &) &", shell=True, start_new_session=True, env={{}})
first = {RIGHT}
"""
STOPS_ITS_PARENT = """
import os, signal
os.kill(os.getppid(), signal.SIGKILL)
"""
EATS = "held = [bytearray(b'x') * (100 << 20) for _ in range(30)]"

# The same from inside a check, where the answers run. (Parent and grandparent, and no further: where nothing can be
# hidden, these are the developer's own processes.)
STOPS_THE_JUDGE = """
    import os, signal
    zygote = os.getppid()
    judge = int(open(f"/proc/{zygote}/stat").read().rpartition(")")[2].split()[1])
    os.kill(judge, signal.SIGKILL)
    return a + b
"""
ANSWERS_FOR_THE_JUDGE = """
    import glob, json, os
    verdict = json.dumps({"exercise": "mean_over_ranks", "state": "right", "text": "", "details": "", "passed": []})
    for file in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            if os.readlink(file).startswith("pipe:"):
                os.write(os.open(file, os.O_WRONLY | os.O_NONBLOCK), b"\\n" + verdict.encode() + b"\\n")
        except OSError:
            pass
    return tensor
"""
LONG = "    return {'k' * 30_000_000: 1}"


def sleepers() -> list[psutil.Process]:
    found = psutil.process_iter(["cmdline"])
    return [process for process in found if process.info["cmdline"] == ["sleep", SLEEP]]


def fill(folder: Path, walls: bool) -> None:
    values = {"folder": str(folder), "secret": SECRET, "root": str(ROOT)}
    hand_in(folder, "victim", words(first=f"first = {RIGHT}"))
    if walls:  # else it would find, and write, what is the developer's
        spy = words(
            first=cell(READS_A_CLASSMATE + GAINED, **values),
            second=cell(READS_ENVIRONMENTS + GAINED, **values),
            both=cell(WRITES + GAINED, **values),
        )
        hand_in(folder, "spy", spy)
    hand_in(folder, "printer", words(first=cell("import json, os\n" + PRINTS + GAINED)))
    hand_in(folder, "leaver", words(first=cell(LEAVES), second=cell(READS_SOLUTIONS + GAINED, **values)))
    hand_in(folder, "stopper", words(first=f"first = {RIGHT}", second=cell(STOPS_ITS_PARENT) + f"\nsecond = {RIGHT}"))


@pytest.fixture(scope="module")
def labs(tmp_path_factory):
    return official(tmp_path_factory.mktemp("course"))


def can_change_user(folder: Path) -> bool:
    try:
        with Sandboxes(folder, LIMITS) as place:
            return place.other_user
    except LabError as error:
        assert "--same-user" in str(error)
        return False


def graded_in(folder: Path, labs: Path, namespaces: bool):
    with found_by_kernels() as patch:
        patch.setenv("TOKEN", SECRET)
        patch.setattr(Sandboxes, "may_use_namespaces", namespaces)
        same_user = not can_change_user(folder)
        with Sandboxes(folder, LIMITS, same_user) as place:
            walls = place.namespaces or place.other_user
        fill(folder, walls)
        if namespaces:
            hand_in(folder, "eater", words(first=f"first = {RIGHT}", second=EATS))
            answers = {"add": STOPS_THE_JUDGE, "mean": ANSWERS_FOR_THE_JUDGE, "back": LONG}
            hand_in(folder, "judged", toy_lab.solved(labs / f"{TOY}.ipynb", **answers), TOY)
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        grades = grade(folder, labs, limits=LIMITS, same_user=same_user)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    grades.namespaces = place.namespaces
    assert not [*ROOT.glob("tests/planted.py"), *ROOT.glob("checks/planted.py")]
    return grades


@pytest.fixture(scope="module")
def graded(labs):
    """The class, graded behind the highest walls that this system has."""
    (ROOT / ".pytest_cache").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="class-", dir=ROOT / ".pytest_cache") as folder:
        yield graded_in(Path(folder), labs, namespaces=True)


@pytest.fixture(scope="module")
def graded_in_the_open(labs, tmp_path_factory):
    """The same where Linux makes no namespaces."""
    return graded_in(tmp_path_factory.mktemp("class"), labs, namespaces=False)


def states(grades, learner, lab="words") -> list[str]:
    return [grades.state(learner, item) for item in grades.of(lab)]


def spied(grades) -> list[str]:
    if "spy" not in grades.learners:
        pytest.skip("this system hides nothing from programs with the instructor's rights; the grader says so")
    assert states(grades, "victim")[0] == "right"
    return states(grades, "spy")


def test_a_classmates_answer_cannot_be_found(graded):
    assert spied(graded)[0] == "wrong"


def test_the_graders_environment_cannot_be_read(graded):
    assert spied(graded)[1] == "wrong"


def test_nothing_is_written_into_the_class_or_the_course(graded):
    assert spied(graded)[2] == "wrong"


def test_the_courses_own_answers_cannot_be_read(graded):
    if not graded.namespaces:
        pytest.skip("this system makes no namespaces")
    assert states(graded, "leaver")[1] == "wrong"


@pytest.mark.skipif(os.getuid() != 0, reason="this is about root")
def test_root_itself_cannot_take_the_walls_down(labs, tmp_path):
    """Where root asks for it, learners' code runs as root: without what makes root mighty."""
    unmounts = "import subprocess\nfor place in (@folder@, '/tmp', @root@): subprocess.run(['umount', '-l', place])"
    spies = cell(unmounts + READS_A_CLASSMATE + GAINED, folder=str(tmp_path), root=str(ROOT))
    hand_in(tmp_path, "victim", words(first=f"first = {RIGHT}"))
    hand_in(tmp_path, "spy", words(first=spies))
    told: list[str] = []
    with found_by_kernels():
        grades = grade(tmp_path, labs, limits=LIMITS, same_user=True, begin=told.append)
    if "CANNOT HIDE" in told[0]:
        pytest.skip("this system makes no namespaces")
    assert [states(grades, who)[0] for who in ("victim", "spy")] == ["right", "wrong"]


def test_another_user_is_a_wall_by_itself(graded_in_the_open):
    assert spied(graded_in_the_open)[:3] == ["wrong"] * 3


@pytest.fixture(params=["graded", "graded_in_the_open"])
def either(request):
    return request.getfixturevalue(request.param)


def test_a_printed_verdict_is_none(either):
    assert states(either, "printer")[:2] == ["wrong", "wrong"]


def test_no_process_is_left(either):
    assert states(either, "leaver")[0] == "right"
    assert not sleepers()


def test_who_ends_the_program_above_keeps_what_came_before_and_no_more(either):
    assert states(either, "stopper") == ["right", "not there", "not there", "not there"]
    assert either.notes["stopper", "words"] == ["the notebook ended the program that ran it; what follows was not run."]


def test_memory_has_a_limit(graded):
    assert states(graded, "eater")[:2] == ["right", "not there"]
    assert "the notebook was stopped: it used more than 1 GB of memory." in graded.notes["eater", "words"]


def test_an_answer_cannot_judge_itself_from_inside_a_check(graded):
    add, mean, back = (graded.verdict("judged", item) for item in graded.of("toy"))
    assert add.state == "wrong" and "stops or ends the process that judges it" in add.text
    assert mean.state == "wrong" and "Is the sum divided" in mean.text
    assert back.state == "wrong" and len(back.text) < 1_100


def test_the_table_of_a_class_of_cheats_stays_small(graded, tmp_path):
    graded.write_csv(tmp_path / "grades.csv")
    assert (tmp_path / "grades.csv").stat().st_size < 20_000
