"""Requests that a server must refuse, and with which status."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.api.support import CHAT, COMPLETIONS, HELLO
from tests.soak.server import CONTEXT, MAX_BODY

JSON_TYPE = "application/json"


@dataclass(frozen=True, slots=True)
class BadRequest:
    status: int
    path: str
    content: bytes
    method: str = "POST"
    kind: str = JSON_TYPE


def chat(**fields: Any) -> BadRequest:
    return BadRequest(400, CHAT, json.dumps({"messages": HELLO, **fields}).encode())


def completion(**fields: Any) -> BadRequest:
    return BadRequest(400, COMPLETIONS, json.dumps({"prompt": "a", **fields}).encode())


VALUES: tuple[dict[str, Any], ...] = (
    {"temperature": -1},
    {"temperature": 2.5},
    {"temperature": "hot"},
    {"top_p": 0},
    {"max_tokens": 0},
    {"max_tokens": -5},
    {"max_tokens": 1.5},
    {"max_tokens": CONTEXT * 10},
    {"seed": 1 << 70},
    {"seed": "a"},
    {"stop": [""]},
    {"stop": ["x"] * 17},
    {"stop": 5},
    {"n": 0},
    {"stream": "yes"},
    {"stream_options": {"include_usage": True}},
    {"speculative": {"drafter": "magic"}},
    {"speculative": {"max_nodes": 0}},
    {"speculative": {"max_nodes": 10_000}},
    {"speculative": {"tau": 2, "verifier": "csd"}},
    {"speculative": []},
    {"no_such_field": 1},
    {"stop_token_ids": [-1]},
)

BAD_REQUESTS = (
    *(make(**fields) for fields in VALUES for make in (chat, completion)),
    *(make(**fields, stream=True) for fields in VALUES[:4] for make in (chat, completion)),
    chat(messages=[]),
    chat(messages="hello"),
    chat(messages=[{"role": "wizard", "content": "a"}]),
    chat(messages=[{"role": "user"}]),
    chat(messages=[{"role": "user", "content": "x" * (CONTEXT + 1)}]),
    chat(messages=[{"role": "user", "content": "\ud800"}]),
    completion(prompt=[]),
    completion(prompt=[1_000_000]),
    completion(prompt=[[-1]]),
    completion(prompt="x" * (CONTEXT + 1)),
    completion(prompt={"a": 1}),
    completion(prompt=None),
    *(
        BadRequest(400, path, content)
        for path in (CHAT, COMPLETIONS)
        for content in (b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"prompt": NaN}', b"[" * 5000, b'{"a":' * 3000, b'"text"')
    ),
    BadRequest(413, CHAT, json.dumps({"messages": [{"role": "user", "content": "x" * MAX_BODY}]}).encode()),
    BadRequest(413, COMPLETIONS, b" " * (MAX_BODY + 1)),
    BadRequest(415, CHAT, b"messages=a", kind="application/x-www-form-urlencoded"),
    BadRequest(415, COMPLETIONS, b"a", kind="text/plain"),
    BadRequest(404, CHAT, json.dumps({"messages": HELLO, "model": "another"}).encode()),
    BadRequest(404, "/v1/nothing", b"{}"),
    BadRequest(404, "/v1/models/another", b"", method="GET"),
    BadRequest(405, CHAT, b"", method="GET"),
    BadRequest(405, "/health", b"", method="DELETE"),
    BadRequest(400, "/tokenize", b"{}"),
    BadRequest(400, "/detokenize", b'{"tokens": ["a"]}'),
)
