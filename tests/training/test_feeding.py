"""What feeds the ranks: who gets what, what a decoded photograph is, and what workers see."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from lessons.training import feeding
from utils.training import data


# ---------------------------------------------------------------------- deal
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("length", [1, 5, 12, 13])
def test_a_deal_covers_the_data_set_and_repeats_no_more_than_it_must(length: int, ranks: int) -> None:
    dealt = feeding.deal(length, ranks)
    cards = [card for row in dealt for card in row]
    assert set(cards) == set(range(length))
    assert len({len(row) for row in dealt}) == 1
    assert len(cards) - length < ranks
    assert len(dealt) == ranks


# ---------------------------------------------------------------------- photographs
@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    feeding.make_photos(folder, 12, side=80)
    return folder


def test_a_photo_is_an_image_of_its_digit(folder: Path) -> None:
    photos = feeding.Photos(folder)
    _, labels = data.digit_images()
    assert len(photos) == 12
    for index in range(12):
        image, label = photos[index]
        assert image.shape == (3, feeding.PIXELS, feeding.PIXELS) and image.dtype == torch.float32
        assert 0 <= image.min() < 0.3 and 0.7 < image.max() <= 1  # ink and paper
        assert label == labels[index]


def test_a_photo_is_augmented_anew_each_time_and_repeatable_by_torchs_seed(folder: Path) -> None:
    photos = feeding.Photos(folder)
    torch.manual_seed(0)
    first, second = photos[0][0], photos[0][0]
    torch.manual_seed(0)
    assert torch.equal(first, photos[0][0])
    assert not torch.equal(first, second)


# ---------------------------------------------------------------------- the probe
def look(method: str) -> list[feeding.Sight]:
    torch.manual_seed(0)
    return list(DataLoader(feeding.Probe(6), batch_size=None, num_workers=2, multiprocessing_context=method))


def test_forked_and_spawned_workers_draw_the_same_and_only_the_own_generator_repeats() -> None:
    forked, spawned = (
        [(s.worker, s.from_python, s.from_numpy, s.from_torch, s.from_own) for s in look(method)]
        for method in ("fork", "spawn")
    )
    assert forked == spawned
    for one, other in zip(forked[::2], forked[1::2], strict=True):  # worker 0 and worker 1
        assert one[4] == other[4]
        assert one[1:4] != other[1:4]


def test_the_probe_counts_who_loaded_and_says_minus_one_without_workers() -> None:
    probe = feeding.Probe(5)
    assert {sight.worker for sight in DataLoader(probe, batch_size=None)} == {-1}
    assert probe.loaded[-1] == 5 and probe.loaded.sum() == 5
    probe = feeding.Probe(5)
    sights = list(DataLoader(probe, batch_size=None, num_workers=2))
    assert probe.loaded[:2].tolist() == [3, 2] and probe.loaded.sum() == 5
    assert [sight.index for sight in sights] == [0, 1, 2, 3, 4]
    assert all(sight.private_bytes > 0 for sight in sights)
    assert len({sight.pid for sight in sights}) == 2
