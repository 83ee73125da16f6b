"""Replies of many entries: written off the event loop in short steps, the same as in one, and bounded."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api import json_text
from app.api.admission import MAX_SCORES, Admission
from app.api.errors import ApiError
from app.api.json_text import SLICE, dump, dump_large
from app.api.limits import MAX_ECHOED_SCORES, check_echo
from tests.api.support import CHAT, COMPLETIONS, HELLO, ask, check_error, client_of, stream, text_of
from tests.synthetic import SyntheticEngine

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text('a"\\\x85\u2028é𝄞\n', max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab\u2029", max_size=3), inner, max_size=4),
    max_leaves=30,
)


@pytest.mark.slow
@given(st.dictionaries(st.text("ab", max_size=3), VALUES, max_size=5))
def test_short_steps_write_the_same(body: dict[str, Any]) -> None:
    assert dump_large(body) == dump(body)
    assert json.loads(dump(body)) == body


@pytest.mark.parametrize("count", [SLICE - 1, SLICE, SLICE + 1, 3 * SLICE])
@pytest.mark.parametrize("entry", [1, "é", {"a": [1, {"b": "\u2028"}]}, [1], []])
def test_long_lists_are_written_in_slices(count: int, entry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"choices": [{"logprobs": {"content": [entry] * count}}, {"trace": [entry] * count}]}
    whole = dump(body)
    sizes: list[int] = []
    write = json_text._text

    def watched(value: Any) -> str:
        text = write(value)
        sizes.append(len(text))
        return text

    monkeypatch.setattr(json_text, "_text", watched)
    assert dump_large(body) == whole
    assert max(sizes) <= SLICE * (len(json.dumps(entry)) + 2)


def on_the_loop(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what is written by the thread of the event loop from now on."""
    sizes: list[int] = []
    write = json_text._text

    def watched(value: Any) -> str:
        text = write(value)
        if not threading.current_thread().name.startswith("AnyIO worker"):
            sizes.append(len(text))
        return text

    monkeypatch.setattr(json_text, "_text", watched)
    return sizes


LONG = {"max_tokens": 1500, "ignore_eos": True, "temperature": 0}


@pytest.mark.parametrize("fields", [{"logprobs": 2, "echo": True}, {"logprobs": 2}, {"speculative": {"trace": True}, "n": 2}])
def test_long_replies_are_written_off_the_loop(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with client_of(SyntheticEngine) as client:
        sizes = on_the_loop(monkeypatch)
        reply = client.post(COMPLETIONS, json={"prompt": "ab " * 700, **LONG, **fields})
        assert reply.status_code == 200
        assert len(reply.content) > 50_000
        assert sizes == []


def test_the_long_frame_of_an_echo_is_written_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = "ab " * 700
    body = {"prompt": prompt, "echo": True, "logprobs": 2, "max_tokens": 20, "temperature": 0, "ignore_eos": True}
    with client_of(SyntheticEngine) as client:
        whole = client.post(COMPLETIONS, json=body).json()["choices"][0]
        sizes = on_the_loop(monkeypatch)
        payloads = stream(client, COMPLETIONS, body)
        assert text_of(payloads) == whole["text"]
        tokens = [token for one in payloads[:-1] for token in (one["choices"][0]["logprobs"] or {}).get("tokens", [])]
        assert tokens == whole["logprobs"]["tokens"] and len(tokens) > 2100
        assert sizes and max(sizes) < 20_000


def test_a_stream_with_several_echoes_is_not_taken_for_unread() -> None:
    body = {"prompt": ["ab " * 700] * 4, "echo": True, "logprobs": 2, "max_tokens": 2}
    with client_of(SyntheticEngine, unread_bytes=200_000) as client:
        assert stream(client, COMPLETIONS, body)[-1] == "[DONE]"


def test_echoed_scores_are_bounded() -> None:
    check_echo(MAX_ECHOED_SCORES, 0)
    with client_of(SyntheticEngine) as client:
        prompts = [[1] * 4000] * 12
        for fields in ({"logprobs": 20, "n": 1}, {"logprobs": 5, "n": 4}):
            reply = client.post(COMPLETIONS, json={"prompt": prompts, "echo": True, "max_tokens": 1, **fields})
            error = check_error(reply, 400, "echo")
            assert str(MAX_ECHOED_SCORES) in error["message"]
        assert ask(client, CHAT, messages=HELLO, max_tokens=1).status_code == 200


def test_all_replies_together_hold_so_many_echoed_scores() -> None:
    admission = Admission(None, lambda: None)
    free = SyntheticEngine().status()
    first, second, third = (admission.enter("", None) for _ in range(3))
    first.score(MAX_SCORES + 1, free)  # alone, any
    second.score(0, free)
    with pytest.raises(ApiError) as error:
        third.score(1, free)
    assert error.value.status == 429
    first.release()
    first.release()
    third.score(MAX_SCORES, free)
    third.release()
    third.score(1, free)  # its client has left: nothing is held for it
    second.score(MAX_SCORES, free)
