"""Reading one streamed answer, however its bytes are cut."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.load.stream import StreamError, StreamReader, payloads


def collect(parts: list[bytes], kind: str = "text/event-stream") -> list[str]:
    async def chunks() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    async def read() -> list[str]:
        reply = httpx.Response(200, headers={"Content-Type": kind}, content=chunks())
        return [payload async for payload in payloads(reply)]

    return asyncio.run(read())


def chunk(text: str = "", finish: str | None = None, **more: Any) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}], **more})


def read(frames: list[str]) -> StreamReader:
    """All frames, each a second after the one before."""
    reader = StreamReader(0.0)
    for at, payload in enumerate(frames, start=1):
        reader.take(payload, float(at))
    reader.finish()
    return reader


END = [
    chunk("", "length", metrics={"speculative_decoding": {"num_spec_steps": 1}}),
    json.dumps({"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 4}}),
    "[DONE]",
]


@given(st.lists(st.integers(0, 60), max_size=12))
def test_events_do_not_depend_on_the_cuts(cuts: list[int]) -> None:
    body = 'data: {"a": "naïve\u2028"}\n\n: keep-alive\ndata:x\r\n\ndata: [DONE]\n\n'.encode()
    places = [0, *sorted(cuts), len(body)]
    parts = [body[start:end] for start, end in itertools.pairwise(places)]
    assert collect([part for part in parts if part]) == ['{"a": "naïve\u2028"}', "x", "[DONE]"]


def test_another_kind_of_reply_is_no_stream() -> None:
    with pytest.raises(StreamError, match="event stream"):
        collect([b"{}"], "application/json")


def test_times_of_an_answer() -> None:
    reader = StreamReader(10.0)
    frames = [chunk(""), chunk("ab"), chunk("c"), chunk("d"), *END]
    for payload, at in zip(frames, [11.0, 12.0, 12.5, 15.5, 16.0, 17.0, 18.0], strict=True):
        reader.take(payload, at)
    reader.finish()
    assert (reader.first, reader.last, reader.longest_pause) == (12.0, 16.0, 3.0)
    assert reader.usage["completion_tokens"] == 4
    assert reader.speculation == {"num_spec_steps": 1}


def test_an_answer_without_text_has_its_end_as_first_text() -> None:
    assert read(END).first == 1.0


def test_equal_texts_are_told_from_others_however_they_are_cut() -> None:
    digests = [read([*map(chunk, pieces), *END]).digest for pieces in (["ab", "c"], ["a", "bc"], ["abd"])]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("frames", "kind"),
    [
        ([chunk("a")], "cut_off"),
        ([chunk("a"), "[DONE]"], "no_usage"),
        (['{"error": {"message": "m", "code": "stopping"}}'], "stream_stopping"),
        (['{"error": {"message": "m"}}'], "stream_error"),
        (["{"], "bad_frame"),
        (["[]"], "bad_frame"),
        (['{"choices": [{}]}'], "bad_frame"),
        (['{"error": "m"}'], "bad_frame"),
    ],
)
def test_streams_that_fail(frames: list[str], kind: str) -> None:
    with pytest.raises(StreamError) as failure:
        read(frames)
    assert failure.value.kind == kind
