"""Server-sent events are read the same, wherever the network cuts them."""

from __future__ import annotations

import pytest

from mainspring.client.sse import Decoder, Frame

STREAM = (
    'retry: 2310\nid: a\nevent: hello\ndata: {"resumed": false}\n\n'
    ": still here\nid: b\n\n"
    'event: progressed\ndata: {"note": "ü: x"}\n\n'
    ": only a comment\n\n"
    'id: c\r\nevent: completed\r\ndata: {"a":\r\ndata: 1}\r\n\r\n'
    "id: d\nevent: never\ndata: {}\n"
).encode()
FRAMES = [
    Frame("hello", {"resumed": False}, "a"),
    Frame("", None, "b"),
    Frame("progressed", {"note": "ü: x"}, None),
    Frame("", None, None),
    Frame("completed", {"a": 1}, "c"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1_000])
def test_frames_come_whole_or_not_at_all(size: int) -> None:
    decoder = Decoder()
    chunks = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    assert [frame for chunk in chunks for frame in decoder.feed(chunk)] == FRAMES
    assert decoder.retry == 2.31
