"""The course as files: which lectures there are, labs made from solutions, notebooks executed and stored.

    outline.py      number, slug, title and place of each lecture, read from the notebooks
    map.py          the map of the course;   readme.py   the README's table of lectures
    build.py        labs from solutions
    notebooks.py    notebooks executed and stored alike on every machine
    renumber.py     lectures inserted, moved, split off: every mention of a number follows
    new.py          a new lecture and a new lab, from templates/
    anywhere.py     notebooks that fetch the course (Colab, Kaggle), and files that a wheel has brought along
    wheel.py        what a wheel brings beside the packages
    size.py         how large each package is, beside what it may be
    update.py       `make update`: the newest version, and what a learner has written stays

``python -m course --help`` lists the commands. Nothing is imported here, so that a lab's kernel pays for none of
it; outline.py needs nothing but Python, so that `make` may ask it before the environment exists.
"""
