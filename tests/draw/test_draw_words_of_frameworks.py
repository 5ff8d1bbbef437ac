"""The pictures of Ray's parts and of the frameworks' processes: what they say without being seen, and that they fit."""

from lessons.pictures import diagram


def test_ray_parts_names_what_stands_in_the_picture() -> None:
    picture = diagram("ray_parts")
    drawn = picture.data.decode().partition("</desc>")[2]
    for word in ("driver", "raylet", "worker process", "actor", "node 1"):
        assert word in drawn
    assert "worker processes" in picture.alt and "actor" in picture.alt


def test_each_framework_stands_in_one_panel() -> None:
    picture = diagram("frameworks")
    drawn = picture.data.decode().partition("</desc>")[2]
    for name in ("DDP", "MPI", "Horovod", "MultiWorkerMirrored", "Mirrored (and nn.DataParallel)", "ParameterServer"):
        assert name in drawn and name.split()[0] in picture.alt
