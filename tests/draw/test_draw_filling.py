"""The picture of buckets that fill: each step shows what the ranks had noted by then, and says what waits."""

import xml.etree.ElementTree as ET

from lessons.pictures.filling import filling
from utils.draw.picture import Picture

PLAN = [["b2", "b1"], ["a2", "a1"], ["stem"]]
SEEN = {
    0: ["b2", "b1", 0, "a2", "a1", 1, "stem", 2, "flush"],
    2: ["a2", "a1", "b2", "b1", 0, 1, "stem", 2, "flush"],
}


def words(picture: Picture) -> list[str]:
    return [text.text for text in ET.fromstring(picture.data).iter("{http://www.w3.org/2000/svg}text")]


def test_a_full_bucket_waits_for_the_one_in_front() -> None:
    shown = words(filling(PLAN, SEEN, 2))
    assert shown[0] == "Step 2 of 6: rank 0 launches bucket 0; bucket 1 of rank 2 is full, and waits"
    assert shown.count("full, must wait") == 1 and shown.count("launched") == 1 + 1  # one stands in the legend
    assert "rank 2 is missing" in shown and "all-reduce" not in shown


def test_the_gradient_that_fills_the_first_bucket_launches_both() -> None:
    picture = filling(PLAN, SEEN, 4)
    shown = words(picture)
    assert shown[0] == "Step 4 of 6: rank 0 launches bucket 1; rank 2 launches buckets 0 and 1"
    assert shown.count("all-reduce") == 2 and "full, must wait" not in shown
    assert "Rank 2: bucket 0 (b2, b1): launched; bucket 1 (a2, a1): launched; bucket 2 (stem): 0 of 1." in picture.alt
