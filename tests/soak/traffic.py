"""The traffic of a soak: one coroutine for each kind of client, and how often each comes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import string
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from bench.load.stream import StreamError, StreamReader, payloads
from tests.api.support import CHAT, COMPLETIONS
from tests.soak.bad_input import BAD_REQUESTS
from tests.soak.ledger import Ledger
from tests.soak.server import CONTEXT, MAX_QUEUED, MAX_RUNNING

JSON_TYPE = "Content-Type: application/json\r\n"
ALPHABET = string.ascii_letters + string.digits + " .,"
LATEST_DROP = 0.1  # seconds: queued, in prefill or in decode by then, as it happens
SPECULATIONS: tuple[dict[str, Any], ...] = ({}, {"drafter": "none"}, {"max_nodes": 4}, {"drafter": "racer", "max_nodes": 16})


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


# In exact mode and float32 each has one right answer: with speculation or without, streamed or not, alone or in company.
EXACT: tuple[tuple[str, dict[str, Any]], ...] = (
    (COMPLETIONS, {"prompt": "abcabcabcabcabc", "temperature": 0, "max_tokens": 48}),
    (COMPLETIONS, {"prompt": "The quick brown fox", "temperature": 1.0, "seed": 7, "max_tokens": 40, "ignore_eos": True}),
    (COMPLETIONS, {"prompt": "0123456789" * 60, "temperature": 0, "max_tokens": 16}),
    (CHAT, {"messages": user("Hello"), "temperature": 0, "max_tokens": 32, "ignore_eos": True}),
    (CHAT, {"messages": user("Tell me more"), "temperature": 0.7, "top_p": 0.9, "seed": 3, "max_tokens": 24}),
)


class Traffic:
    """Clients of one server. Every wrong reply becomes a problem in the ledger."""

    def __init__(self, http: httpx.AsyncClient, ledger: Ledger, seed: int) -> None:
        self._http = http
        self.ledger = ledger
        self._random = random.Random(seed)
        self._kinds: tuple[tuple[Callable[[], Awaitable[None]], int], ...] = (
            (self.exact, 30),
            (self.sampled, 12),
            (self.rescuing, 12),
            (self.several_prompts, 4),
            (self.long_prompt, 6),
            (self.stream_left, 10),
            (self.answer_not_awaited, 10),
            (self.half_a_request, 2),
            (self.refused, 12),
            (self.crowd, 1),
        )

    async def one(self) -> None:
        """One client of a random kind."""
        kinds, weights = zip(*self._kinds, strict=True)
        (kind,) = self._random.choices(kinds, weights)
        self.ledger.kinds[kind.__name__] += 1
        try:
            await kind()
        except httpx.HTTPError as error:
            self.ledger.problem(f"{kind.__name__}: {type(error).__name__} {error}")

    # -- clients that wait for their answer ------------------------------------------------------------------------------

    async def exact(self) -> None:
        number = self._random.randrange(len(EXACT))
        await self.exact_answer(number, self._random.choice(SPECULATIONS), stream=self._random.random() < 0.5)

    async def exact_answer(self, number: int, speculative: dict[str, Any], *, stream: bool) -> None:
        path, body = EXACT[number]
        text = await self._answer(path, {**body, "speculative": speculative}, stream=stream)
        if text is not None:
            self.ledger.compare(f"{number} of EXACT", text)

    async def sampled(self) -> None:
        body = {"temperature": 1.0, "top_p": 0.95, "max_tokens": self._random.randrange(1, 64), "stop": ["zq"]}
        await self._answer(CHAT, {"messages": user(self._text(40)), **body}, stream=self._random.random() < 0.5)

    async def rescuing(self) -> None:
        speculative = {"verifier": "csd", "lambda": 0, "tau": 0.001}
        body = {"prompt": self._text(10) * 4, "temperature": 0, "max_tokens": 40, "ignore_eos": True}
        await self._answer(COMPLETIONS, {**body, "speculative": speculative}, stream=self._random.random() < 0.5)

    async def several_prompts(self) -> None:
        prompts = [self._text(20) for _ in range(3)]
        await self._answer(COMPLETIONS, {"prompt": prompts, "max_tokens": 12}, stream=False, generations=3)

    async def long_prompt(self) -> None:
        await self._answer(COMPLETIONS, {"prompt": self._text(CONTEXT - 200), "max_tokens": 8}, stream=True)

    async def crowd(self) -> None:
        """More at once than there are places: some are refused with 429, the others answered."""
        count = 2 * (MAX_RUNNING + MAX_QUEUED)
        await asyncio.gather(*(self.exact_answer(number % len(EXACT), {}, stream=True) for number in range(count)))

    # -- clients that leave ----------------------------------------------------------------------------------------------

    async def stream_left(self) -> None:
        """Leaves after some pieces of text."""
        longest = 1000
        body = {"messages": user(self._text(60)), "max_tokens": longest, "ignore_eos": True, "stream": True}
        wanted = self._random.randrange(12)
        async with self._http.stream("POST", CHAT, json=body) as reply:
            if reply.status_code != 200:
                await reply.aread()
                self._not_answered(reply)
                return
            self.ledger.left(longest)
            async for _ in reply.aiter_bytes():
                if wanted == 0:
                    return
                wanted -= 1

    async def answer_not_awaited(self) -> None:
        """Leaves at a random moment: before the body was read, in the queue, in prefill or in decode."""
        text = self._text(self._random.choice((10, 1000)))
        longest = 900
        body = {"prompt": text, "max_tokens": longest, "ignore_eos": True, "stream": self._random.random() < 0.3}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._random.uniform(0.0, LATEST_DROP)):
                reply = await self._http.post(COMPLETIONS, json=body)
                if reply.status_code != 200:
                    self._not_answered(reply)
                    return
        self.ledger.left(longest)

    async def half_a_request(self) -> None:
        """Sends a part of a request over a bare connection, then nothing, then goes."""
        content = json.dumps({"prompt": self._text(200), "max_tokens": 50}).encode()
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\n{JSON_TYPE}Content-Length: {len(content)}\r\n\r\n".encode()
        whole = head + content
        url = self._http.base_url
        _, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(whole[: self._random.randrange(len(whole))])
        await writer.drain()
        await asyncio.sleep(self._random.uniform(0.0, LATEST_DROP))
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    # -- clients that ask what cannot be -----------------------------------------------------------------------------------

    async def refused(self) -> None:
        bad = self._random.choice(BAD_REQUESTS)
        reply = await self._http.request(bad.method, bad.path, content=bad.content, headers={"Content-Type": bad.kind})
        if reply.status_code == 429:  # a full queue is said before a body is read
            self.ledger.refused += 1
            return
        self.ledger.check(
            reply.status_code == bad.status,
            f"{bad.method} {bad.path} with {bad.content[:80]!r} got {reply.status_code}, not {bad.status}",
        )
        self._check_error(reply)

    # -- parts -----------------------------------------------------------------------------------------------------------

    def _text(self, length: int) -> str:
        return "".join(self._random.choices(ALPHABET, k=length))

    async def _answer(self, path: str, body: dict[str, Any], *, stream: bool, generations: int = 1) -> str | None:
        """The text, counted; None for one that was refused for want of room."""
        if stream:
            return await self._streamed(path, body)
        reply = await self._http.post(path, json=body)
        if reply.status_code != 200:
            self._not_answered(reply)
            self.ledger.left(body["max_tokens"], generations - 1)  # those that found a place before the others did not
            return None
        answer = reply.json()
        self.ledger.answered(answer["usage"], generations)
        choice = answer["choices"][0]
        return str(choice["text"] if "text" in choice else choice["message"]["content"])

    async def _streamed(self, path: str, body: dict[str, Any]) -> str | None:
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        reader = StreamReader(0.0)
        async with self._http.stream("POST", path, json=body) as reply:
            if reply.status_code != 200:
                await reply.aread()
                self._not_answered(reply)
                return None
            try:
                async for payload in payloads(reply):
                    reader.take(payload, 0.0)
                reader.finish()
            except StreamError as error:
                self.ledger.problem(f"a stream of {path} failed: {error.kind}, {error}")
                return None
        self.ledger.answered(reader.usage)
        return reader.text

    def _not_answered(self, reply: httpx.Response) -> None:
        """The one good reason: no room, with the time to come back."""
        self._check_error(reply)
        if reply.status_code == 429 and reply.headers.get("retry-after", "").isdigit():
            self.ledger.refused += 1
        else:
            self.ledger.problem(f"{reply.request.url.path} answered {reply.status_code}: {reply.text[:200]}")

    def _check_error(self, reply: httpx.Response) -> None:
        try:
            shape = set(reply.json()["error"])
        except (ValueError, KeyError, TypeError):
            shape = set()
        right = shape == {"message", "type", "param", "code"} and len(reply.content) < 8192
        self.ledger.check(right, f"error {reply.status_code} of {reply.request.url.path} is not in OpenAI's form")
