"""The state of a conversation, and where its answers come from."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from rich.style import Style

from app.chat.answers import EngineAnswer, ServerAnswer, Spread, pieces_of
from app.chat.dialogue import AnswerSettings, Dialogue, Piece, Quit, TurnEnd
from app.chat.terminal import rendered
from app.engine.engine import Engine, EngineConfig
from app.engine.errors import EngineError
from app.engine.interface import EngineInterface
from app.main import create_app
from app.text.thoughts import KNOWN_TAGS, Thoughts
from tests.api.support import new_settings, serving
from tests.engine.drafting import FLAT
from tests.synthetic import SyntheticCodec, SyntheticEngine
from tests.tiny import CHAT_TEMPLATE, loaded
from tests.waiting import wait_until

END = TurnEnd("stop", 10, 4, 5, 30, 20, "racer", {"target": 5, "retrieval": 5}, 1)


CONTEXT = 20_000


def new_engine() -> Engine:
    """It never ends an answer by itself."""
    tiny = loaded(eos=frozenset(), max_context=CONTEXT, chat_template=CHAT_TEMPLATE)
    return Engine(tiny, EngineConfig(max_nodes=24, prior_rows=0, cost_curve=FLAT))


@pytest.fixture
def engine() -> Iterator[Engine]:
    with new_engine() as engine:
        yield engine


@contextmanager
def served(engine: EngineInterface, **changes: Any) -> Iterator[str]:
    app = create_app(new_settings(target="tiny", **changes), lambda: engine)
    with serving(app) as url:
        wait_until(lambda: app.state.service.state == "ready")
        yield url


def whole(items: Iterator[Piece | TurnEnd]) -> tuple[str, list[Piece], TurnEnd]:
    *pieces, end = items
    assert isinstance(end, TurnEnd)
    found = [piece for piece in pieces if isinstance(piece, Piece)]
    assert len(found) == len(pieces)
    return "".join(piece.text for piece in found), found, end


def test_history():
    dialogue = Dialogue(AnswerSettings(), "Be brief.")
    first = dialogue.turn("one")
    assert [message["content"] for message in first.messages] == ["Be brief.", "one"]
    line = dialogue.answered("one", "1", END, 2.0)
    assert line == "10 tokens, 5.0 tokens/s, MAT 2.25, 1 rescued, 20 of 30 prompt tokens kept, drafter racer, ended by stop"
    second = dialogue.turn("two")
    assert [message["role"] for message in second.messages] == ["system", "user", "assistant", "user"]
    assert second.conversation == first.conversation
    dialogue.answered("two", "", END, 2.0)  # stopped before its first word
    assert len(dialogue.turn("three").messages) == 4
    dialogue.command("/clear")
    cleared = dialogue.turn("four")
    assert [message["role"] for message in cleared.messages] == ["system", "user"]
    assert cleared.conversation != first.conversation
    assert "2 answers, 20 tokens in 4.0 s (5.0 tokens/s), MAT 2.25" in dialogue.command("/stats")


def test_commands():
    dialogue = Dialogue(AnswerSettings(max_tokens=7))
    for name in ("/help", "/clear", "/system", "/plain", "/settings", "/stats", "/quit"):
        assert name in dialogue.command("/help")
    assert dialogue.command("/system  Speak French. ") == "system: Speak French."
    assert dialogue.command("/system") == "system: Speak French."
    assert dialogue.command("/system -") == "No system message."
    dialogue.command("/plain on")
    assert dialogue.turn("x").plain
    assert dialogue.command("/plain perhaps") == "/plain takes on or off."
    dialogue.command("/plain off")
    assert not dialogue.turn("x").plain
    assert dialogue.command("/settings temperature 0.5") == "temperature = 0.5"
    dialogue.command("/settings seed 4")
    assert dialogue.turn("x").settings == AnswerSettings(7, 0.5, 4)
    assert dialogue.command("/settings seed none") == "seed = None"
    assert "max_tokens = 7" in dialogue.command("/settings")
    before = dialogue.settings
    for wrong in ("temperature 3", "temperature warm", "max_tokens 0", "seed 1.5", "top_k 3", "temperature nan"):
        assert dialogue.command(f"/settings {wrong}").endswith(".")
    assert dialogue.settings == before
    assert "/help" in dialogue.command("/nonsense")
    with pytest.raises(Quit):
        dialogue.command("/quit")


def test_an_engine_and_a_server_tell_the_same(engine: Engine):
    dialogue = Dialogue(AnswerSettings(max_tokens=60))
    turn = dialogue.turn("abcabcabc")
    text, pieces, end = whole(iter(EngineAnswer(engine, turn)))
    assert len({piece.source for piece in pieces if piece.text}) > 1
    assert (end.tokens, end.drafter, end.cached_tokens) == (60, "racer", 0)
    assert sum(end.sources.values()) == 60
    with served(new_engine()) as url:
        remote_text, remote, remote_end = whole(iter(ServerAnswer(f"{url}/v1/", None, turn)))
        assert remote_text == text
        assert sum(remote_end.sources.values()) == remote_end.tokens == 60
        assert (remote_end.prompt_tokens, remote_end.drafter) == (end.prompt_tokens, "racer")
        assert len({piece.source for piece in remote}) > 1
        dialogue.answered("abcabcabc", text, end, 1.0)
        assert whole(iter(ServerAnswer(url, None, dialogue.turn("x"))))[2].cached_tokens > end.prompt_tokens
        plain = Dialogue(AnswerSettings(max_tokens=5), plain=True).turn("x")
        assert whole(iter(ServerAnswer(url, None, plain)))[2].drafter == "none"
    assert whole(iter(EngineAnswer(engine, dialogue.turn("x"))))[2].cached_tokens > end.prompt_tokens


class OneReply(BaseHTTPRequestHandler):
    """A server of another make: CRLF, a comment, and a line separator within the text."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        frame = json.dumps({"choices": [{"delta": {"content": "a\u2028b"}, "finish_reason": None}]}, ensure_ascii=False)
        self.wfile.write(f": hello\r\n\r\ndata:{frame}\r\n\r\ndata: [DONE]\r\n\r\n".encode())

    def log_message(self, *_: object) -> None:
        pass


def test_a_line_separator_in_an_answer_of_a_server_is_text():
    with HTTPServer(("127.0.0.1", 0), OneReply) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        turn = Dialogue(AnswerSettings()).turn("x")
        assert whole(iter(ServerAnswer(f"http://127.0.0.1:{server.server_port}", None, turn)))[0] == "a\u2028b"


def test_stopping(engine: Engine):
    endless = Dialogue(AnswerSettings(max_tokens=CONTEXT - 500)).turn("x")
    answer = EngineAnswer(engine, endless)
    items = iter(answer)
    assert isinstance(next(items), Piece)
    answer.stop()
    text, _, end = whole(items)
    assert (end.reason, end.tokens) == ("cancelled", len(text) + 1)
    with served(engine) as url:
        remote = ServerAnswer(url, None, endless)
        items = iter(remote)
        assert isinstance(next(items), Piece)
        remote.stop()
        assert whole(items)[2].reason == "cancelled"
        wait_until(lambda: engine.status().running == 0)  # the server hears of it


def test_refusals(engine: Engine):
    turn = Dialogue(AnswerSettings(max_tokens=CONTEXT)).turn("Hello")
    with pytest.raises(EngineError, match="context is 20000 tokens"):
        EngineAnswer(engine, turn)
    with served(engine, api_keys="secret") as url:
        with pytest.raises(EngineError, match="context is 20000 tokens"):
            list(ServerAnswer(url, "secret", turn))
        with pytest.raises(EngineError, match="key"):
            list(ServerAnswer(url, "wrong", turn))
    with pytest.raises(EngineError, match="check --url"):
        list(ServerAnswer(url, None, turn))  # it is gone


def test_text_is_shared_out_over_tokens():
    def token(text: str, source: str) -> dict[str, object]:
        return {"text": text, "source": source, "rescued": False}

    spread = Spread()
    spread.tokens += pieces_of([token("a", "target"), token("b", "retrieval"), token("�", "copy_logit")])
    assert [(piece.text, piece.source) for piece in spread.share("ab")] == [("a", "target"), ("b", "retrieval")]
    assert [(piece.text, piece.source) for piece in spread.share("é")] == [("é", "copy_logit")]
    assert [piece.text for piece in spread.share("rest")] == ["rest"]
    spread.tokens += pieces_of(
        [token("<think>", "target"), token("\n", "target"), token("hm", "retrieval"), token("!", "target")]
    )
    assert [(piece.text, piece.source) for piece in spread.share("hm!")] == [("hm", "retrieval"), ("!", "target")]


@pytest.mark.parametrize("begun", [False, True])
def test_thoughts_are_told_from_the_answer_here_and_there(begun: bool):
    turn = Dialogue(AnswerSettings(max_tokens=60)).turn("x")
    found = []
    for where in ("engine", "server"):
        engine = SyntheticEngine(codec=SyntheticCodec(thoughts=Thoughts(KNOWN_TAGS[0], begun)))
        engine.answer = "\nhm, é\n</think>\n\nYes." if begun else "<think>\nhm, é\n</think>\n\nYes."
        if where == "engine":
            pieces = whole(iter(EngineAnswer(engine, turn)))[1]
        else:
            with served(engine) as url:
                pieces = whole(iter(ServerAnswer(url, None, turn)))[1]
        engine.close()
        found.append(["".join(piece.text for piece in pieces if piece.thought is thought) for thought in (True, False)])
    assert found == [["hm, é", "Yes."]] * 2


def test_a_model_cannot_move_the_cursor():
    assert rendered(Piece("a\x1b[2Jb\tc\r\n\x07", "target")).plain == "a\ufffd[2Jb\tc\n\ufffd"


def test_thoughts_look_other_than_the_answer():
    style = rendered(Piece("a", "retrieval", thought=True)).style
    assert isinstance(style, Style)
    assert (style.dim, style.italic, style.color) == (True, True, Style.parse("green").color)


def test_a_rescued_token_is_underlined_in_the_colour_of_its_source():
    kept, rescued = rendered(Piece("a", "retrieval")).style, rendered(Piece("a", "retrieval", rescued=True)).style
    assert isinstance(kept, Style)
    assert isinstance(rescued, Style)
    assert (kept.underline, rescued.underline) == (False, True)
    assert kept.color == rescued.color != Style.parse("default").color
