"""Work on texts: long work does not hold up short work, what waits is bounded and fair, clients that leave cost nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from app.api.errors import ApiError
from app.api.text_work import LEAST, SHORT, LaneName, TextWork
from tests.api.support import CHAT, COMPLETIONS, ask, check_error, client_of, samples
from tests.synthetic import SyntheticCodec, SyntheticEngine
from tests.waiting import wait_until

MIB = 1 << 20


class Held:
    """Jobs that run until they are let go; notes the order they began in."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self._go_on = threading.Event()

    def job(self, name: str) -> Callable[[], str]:
        def work() -> str:
            self.began.append(name)
            assert self._go_on.wait(30.0)
            return name

        return work

    def let_go(self) -> None:
        self._go_on.set()


def running(test: Callable[[TextWork, Held], Awaitable[None]], most_bytes: int = MIB) -> int:
    """Runs a test on its own loop; returns how many jobs were refused."""
    refused: list[None] = []
    held = Held()

    async def run() -> None:
        try:
            await asyncio.wait_for(test(TextWork(most_bytes, lambda: refused.append(None)), held), 60.0)
        finally:
            held.let_go()

    asyncio.run(run())
    return len(refused)


def start(text: TextWork, held: Held, name: str, lane: LaneName = "convert", **changes: Any) -> asyncio.Task[str]:
    return asyncio.create_task(text.run(lane, held.job(name), **{"tenant": "", "size": LEAST, **changes}))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)  # jobs begin on threads, which know no event of the loop


def test_keys_take_turns_and_what_is_admitted_comes_first() -> None:
    async def test(text: TextWork, held: Held) -> None:
        tasks = [start(text, held, "first", tenant="a")]
        await until(lambda: held.began == ["first"])
        tasks += [start(text, held, f"a{number}", tenant="a") for number in range(3)]
        tasks += [start(text, held, f"b{number}", tenant="b") for number in range(2)]
        tasks.append(start(text, held, "admitted", tenant="a", admitted=True))
        await until(lambda: text.status()["convert"].waiting == 6)
        assert text.status()["convert"] == (1, 6, 6 * LEAST)
        held.let_go()
        await asyncio.gather(*tasks)
        assert held.began == ["first", "admitted", "a0", "b0", "a1", "b1", "a2"]
        assert text.status()["convert"] == (0, 0, 0)

    assert running(test) == 0


def test_lanes_do_not_wait_for_each_other() -> None:
    async def test(text: TextWork, held: Held) -> None:
        long = [start(text, held, "long", lane) for lane in ("convert", "generate", "reply") for _ in range(3)]
        await until(lambda: len(held.began) == 3)
        assert await text.run("short", lambda: "short", tenant="", size=1) == "short"
        assert len(held.began) == 3
        held.let_go()
        await asyncio.gather(*long)

    running(test)


def test_what_waits_is_bounded_by_its_bytes_and_one_key_has_half() -> None:
    async def test(text: TextWork, held: Held) -> None:
        tasks = [start(text, held, "first", tenant="a", size=10 * MIB)]  # whatever its size, if nothing waits
        await until(lambda: held.began != [])
        tasks += [start(text, held, f"a{number}", tenant="a", size=MIB // 4) for number in range(2)]
        await until(lambda: text.status()["convert"].waiting == 2)
        with pytest.raises(ApiError) as error:
            await text.run("convert", held.job("x"), tenant="a", size=MIB // 4)
        assert error.value.status == 429 and 1 <= int(error.value.headers["Retry-After"]) <= 60
        tasks += [start(text, held, f"b{number}", tenant=f"b{number}", size=MIB // 4) for number in range(2)]
        await until(lambda: text.status()["convert"].waiting == 4)
        with pytest.raises(ApiError):  # all is taken
            await text.run("convert", held.job("x"), tenant="c", size=LEAST)
        tasks.append(start(text, held, "admitted", tenant="a", size=MIB, admitted=True))
        await until(lambda: text.status()["convert"].waiting == 5)
        held.let_go()
        await asyncio.gather(*tasks)
        assert "x" not in held.began
        tasks = [start(text, held, f"c{number}", tenant="a", size=MIB // 2) for number in range(2)]  # room again
        await asyncio.gather(*tasks)

    assert running(test) == 2


def test_small_jobs_count_too() -> None:
    async def test(text: TextWork, held: Held) -> None:
        tasks = [start(text, held, str(number), size=1) for number in range(5)]
        await until(lambda: text.status()["convert"].waiting == 4)
        with pytest.raises(ApiError):
            await text.run("convert", held.job("x"), tenant="", size=1)
        held.let_go()
        await asyncio.gather(*tasks)

    assert running(test, most_bytes=4 * LEAST) == 1


def test_who_leaves_gives_up_the_place_but_not_a_thread_that_works() -> None:
    async def test(text: TextWork, held: Held) -> None:
        begun, waiting, last = (start(text, held, name) for name in ("begun", "waiting", "last"))
        await until(lambda: text.status()["convert"].waiting == 2)
        begun.cancel()
        waiting.cancel()
        await until(lambda: begun.done() and waiting.done())
        assert text.status()["convert"] == (1, 1, LEAST)  # the thread is taken until the work ends
        assert held.began == ["begun"]
        held.let_go()
        assert await last == "last"
        assert held.began == ["begun", "last"]
        assert text.status()["convert"] == (0, 0, 0)

    running(test)


def test_a_turn_that_comes_as_its_client_leaves_is_passed_on() -> None:
    async def test(text: TextWork, held: Held) -> None:
        begun = start(text, held, "begun")
        await until(lambda: held.began == ["begun"])
        leaving, last = start(text, held, "leaving"), start(text, held, "last")
        await until(lambda: text.status()["convert"].waiting == 2)
        text._lanes["convert"].free()  # as when a job ends
        leaving.cancel()
        held.let_go()
        assert await last == "last"
        await begun
        assert "leaving" not in held.began

    running(test)


def test_a_failure_is_the_one_s_who_asked() -> None:
    async def test(text: TextWork, held: Held) -> None:
        def fail() -> None:
            raise ValueError("not text")

        with pytest.raises(ValueError, match="not text"):
            await text.run("convert", fail, tenant="", size=1)
        assert text.status()["convert"] == (0, 0, 0)

    running(test)


# -- the routes ------------------------------------------------------------------------------------------------------------


class Gated(SyntheticCodec):
    """Long texts are not done before they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.long = 0

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        if len(text) > SHORT:
            self.long += 1
            assert self.go_on.wait(30.0)
        return super().encode(text, add_special_tokens)


def test_a_flood_of_long_texts_delays_no_plain_request_and_the_surplus_is_refused() -> None:
    codec = Gated()
    statuses: list[int] = []
    text = "a" * 100_000
    with client_of(lambda: SyntheticEngine(codec=codec), text_queue_bytes=500_000) as client:

        def flood() -> None:
            reply = client.post("/tokenize", json={"prompt": text})
            statuses.append(reply.status_code)
            if reply.status_code == 429:
                check_error(reply, 429, code="queue_full")
                assert int(reply.headers["retry-after"]) >= 1

        threads = [threading.Thread(target=flood) for _ in range(12)]
        for thread in threads:
            thread.start()
        wait_until(lambda: codec.long == 1 and len(statuses) >= 7)
        for path in (CHAT, COMPLETIONS):
            assert ask(client, path, max_tokens=1).status_code == 200
        assert client.post("/tokenize", json={"prompt": "short"}).status_code == 200
        assert client.post("/detokenize", json={"tokens": [97]}).json() == {"prompt": "a"}
        found = samples(client)
        assert found['racer_text_jobs_running{lane="convert"}'] == 1
        assert 0 < found['racer_text_bytes_waiting{lane="convert"}'] <= 500_000
        assert found['racer_text_jobs_waiting{lane="short"}'] == 0
        assert found["racer_text_refusals_total"] == found["racer_queue_refusals_total"] == statuses.count(429) >= 7
        codec.go_on.set()
        for thread in threads:
            thread.join(30.0)
    assert statuses.count(200) == 12 - statuses.count(429) > 0


@pytest.mark.parametrize(
    ("path", "fields", "lane"),
    [
        (COMPLETIONS, {}, "short"),
        (COMPLETIONS, {"prompt": "a" * SHORT}, "generate"),
        (CHAT, {"response_format": {"type": "json_object"}}, "generate"),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}]}, "short"),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"}, "generate"),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "generate"),
    ],
)
def test_lanes(path: str, fields: dict[str, Any], lane: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes: list[str] = []
    run = TextWork.run

    async def watched(self: TextWork, name: LaneName, work: Callable[[], Any], **settings: Any) -> Any:
        lanes.append(name)
        return await run(self, name, work, **settings)

    monkeypatch.setattr(TextWork, "run", watched)
    with client_of(SyntheticEngine, max_context=100_000) as client:
        assert ask(client, path, max_tokens=1, **fields).status_code in (200, 400)
    assert set(lanes) == {lane}


def test_a_client_that_leaves_while_its_text_waits_is_forgotten() -> None:
    codec = Gated()
    with client_of(lambda: SyntheticEngine(codec=codec)) as client:
        text = client.app.state.service.text  # type: ignore[attr-defined]
        first = threading.Thread(target=client.post, args=("/tokenize",), kwargs={"json": {"prompt": "a" * 50_000}})
        first.start()
        wait_until(lambda: codec.long == 1)

        async def leave() -> None:
            job = asyncio.create_task(text.run("convert", lambda: 0, tenant="", size=1))
            await asyncio.sleep(0)
            assert text.status()["convert"].waiting == 1
            job.cancel()

        assert client.portal is not None
        client.portal.call(leave)
        wait_until(lambda: text.status()["convert"].waiting == 0)
        codec.go_on.set()
        first.join(30.0)
