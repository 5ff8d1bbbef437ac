"""Grading a folder of learners' labs: ``python -m checks.grade DIR`` (`make grade`).

    handed_in.py   which notebooks are there, and whose they are
    official.py    the course's labs, and their checks put back into a learner's notebook
    grading.py     each notebook: run, then judged
    sandbox.py     where its code runs, and what it says; walls.py is what it cannot see or do there
    inside.py      in there: the notebook's cells hand in their functions, and the checks judge these
    table.py       learner × exercise, as text, as CSV and as a file for each learner
    gradebooks.py  the same for Canvas, Moodle and nbgrader

Nothing is imported here.
"""
