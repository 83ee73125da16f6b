"""The stop matcher against a naive search of the whole text."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.text.stops import StopMatcher

FEW = st.text("abé", max_size=60)
STOPS = st.lists(st.text("abé", min_size=1, max_size=6), max_size=5)


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Grow the text by one character at a time; the first end reached wins, the longest stop on a tie."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


def split(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in pairwise(places)]


@given(text=FEW, stops=STOPS, cuts=st.lists(st.integers(0, 1000), max_size=20))
@settings(max_examples=500)
def test_equals_the_naive_search_and_never_lets_a_stop_begin(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopMatcher(stops)
    shown, hit, arrived = "", None, ""
    for piece in split(text, cuts):
        released, hit = matcher.push(piece)
        shown, arrived = shown + released, arrived + piece
        if hit is not None:
            break
        # The longest ending of what arrived that begins a stop is held back, and nothing more.
        held = max((n for stop in stops for n in range(1, len(stop)) if arrived.endswith(stop[:n])), default=0)
        assert shown == arrived[: len(arrived) - held]
    wanted, wanted_hit = naive(text, stops)
    assert hit == wanted_hit
    assert shown + matcher.flush() == wanted


def test_the_first_to_be_complete_wins_whatever_the_order() -> None:
    for stops in (["later", "soon"], ["soon", "later"]):
        assert StopMatcher(stops).push("x soon and later") == ("x ", "soon")
    assert StopMatcher(["bc", "abcd"]).push("xabcd") == ("xa", "bc")
    assert StopMatcher(["bcd", "abcd"]).push("xabcd") == ("x", "abcd")


def test_after_a_hit_nothing_more_comes() -> None:
    matcher = StopMatcher(["##"])
    assert matcher.push("a#") == ("a", None)
    assert matcher.push("#b") == ("", "##")
    assert matcher.push("c##d") == ("", "##")
    assert matcher.flush() == ""


def test_no_stops_passes_through_and_nothing_is_held() -> None:
    matcher = StopMatcher([])
    assert matcher.push("abc") == ("abc", None)
    assert matcher.flush() == ""


def test_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])


def test_many_long_stops_that_nearly_match() -> None:
    matcher = StopMatcher(["a" * 400 + chr(ord("b") + n) for n in range(16)])
    shown = "".join(matcher.push("a" * 4)[0] for _ in range(500))
    assert len(shown) == 2000 - 400
    assert matcher.push("z") == ("a" * 400 + "z", None)


def test_a_stop_may_begin_where_none_may_end():
    matcher = StopMatcher(["ab", "aa"])
    assert matcher.push("xab", ends=False) == ("xab", None)
    assert matcher.push("a", ends=False) == ("", None)
    assert matcher.push("b") == ("", "ab")
    border = StopMatcher(["abab"])
    assert border.push("xabab", ends=False) == ("xab", None)  # its end may begin the next one
    assert border.push("ab") == ("", "abab")
    again = StopMatcher(["aa"])
    assert again.push("aaa", ends=False) == ("aa", None)
    assert again.push("ba") == ("ab", None)
    assert again.push("a") == ("", "aa")
