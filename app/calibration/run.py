"""The calibration itself: reads or decodes what is not in the journal yet, and sums up."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from app.calibration.forced import ComparedText, ForcedReader, Text
from app.calibration.journal import Journal
from app.calibration.texts import Item
from app.engine.engine import Engine
from app.engine.prefix.prefix import common_length
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams
from csd.divergence import Divergences, Event
from csd.files import write_whole
from csd.verify import Walk

Mode = Literal["rollout", "forced"]
SHOWN = 20  # most frequent pairs in a report
LAMBDAS = (0, 1, 2, 3, 6, 12, 24)


@dataclass(frozen=True, slots=True)
class CalibrationProgress:
    """After each text: how many of how many are done, tokens a second, seconds left by the pace so far."""

    done: int
    total: int
    events: int
    tokens_per_s: float
    seconds_left: float


def calibrate(
    engine: Engine,
    items: Sequence[Item],
    mode: Mode,
    journal: Journal,
    *,
    max_tokens: int,
    gamma: int,
    generate: bool,
    report: Callable[[CalibrationProgress], None],
) -> None:
    """Fill the journal. KeyboardInterrupt leaves it with every text that was finished.

    forced: questions without an answer are read as they are, or answered by the target first (`generate`).
    """
    left = [item for item in items if item.key not in journal.readings]
    source = (
        _forced(engine, left, max_tokens, generate=generate) if mode == "forced" else _rollout(engine, left, max_tokens, gamma)
    )
    before = started = time.perf_counter()
    done = len(items) - len(left)
    events = journal.divergences().events
    for reading, tokens in source:
        now = time.perf_counter()
        journal.add(_without_protected(reading, engine.protected_ids), round(now - before, 4), tokens)
        before = now
        done += 1
        events += len(journal.readings[reading.key].events)
        pace = (now - started) / (done - (len(items) - len(left)))
        rate = journal.tokens / journal.seconds if journal.seconds else 0.0
        report(CalibrationProgress(done, len(items), events, rate, pace * (len(items) - done)))
    journal.seal()


def _forced(engine: Engine, items: Sequence[Item], max_tokens: int, *, generate: bool) -> Iterator[tuple[ComparedText, int]]:
    target, draft, shared = engine.instruments.both_models()
    reader = ForcedReader(target, draft, shared=shared, chunk=engine.config.prefill_chunk)
    texts = (_text(engine, item, max_tokens, generate=generate) for item in items)
    sizes: dict[str, int] = {}

    def known() -> Iterator[Text]:
        for text in texts:
            sizes[text.key] = len(text.tokens)
            yield text

    for reading in reader.read(known()):
        yield reading, sizes[reading.key]


def _text(engine: Engine, item: Item, max_tokens: int, *, generate: bool) -> Text:
    """A corpus text, or a chat whose answer is compared; of a question alone the user's words. Cut to the context.

    What a chat template writes around the words is the same in every prompt, so it would drown what differs.
    """
    room = engine.info.max_context
    if item.prompt is None:
        return Text(item.key, tuple(engine.codec.encode(item.text or "")[:room]), 1)
    prompt = question(engine, item.prompt)[:room]
    if item.text is not None:
        answer = tuple(engine.codec.encode(item.text, False))
    elif generate and len(prompt) < room:
        answer = engine.generate(_request(prompt, min(max_tokens, room - len(prompt)), SpeculationParams("racer"))).token_ids
    else:
        return Text(item.key, prompt, *_words(engine, prompt))
    return Text(item.key, (prompt + answer)[:room], len(prompt))


def _words(engine: Engine, prompt: tuple[int, ...]) -> tuple[int, int]:
    """Where the user's words lie in a prompt, without the first, which nothing foretells."""
    frame = question(engine, ".")
    end = len(prompt) - common_length(prompt[::-1], frame[::-1])
    return min(common_length(prompt, frame) + 1, end), end


def _without_protected(reading: ComparedText, protected: frozenset[int]) -> ComparedText:
    """Special tokens are never rescued, so a table has no use for them."""
    events = tuple(event for event in reading.events if event.draft not in protected and event.target not in protected)
    return replace(reading, events=events)


def _rollout(engine: Engine, items: Sequence[Item], max_tokens: int, gamma: int) -> Iterator[tuple[ComparedText, int]]:
    speculation = SpeculationParams("draft_model", max_nodes=gamma + 1, fixed_budget=True)
    for item in items:
        text = item.prompt if item.prompt is not None else item.text or ""
        prompt = question(engine, text)
        room = engine.info.max_context - len(prompt)
        if room < 1:
            yield ComparedText(item.key, 0, ()), 0
            continue
        events: list[Event] = []
        compared: list[int] = []

        def hear(walk: Walk, gaps: list[float], events: list[Event] = events, compared: list[int] = compared) -> None:
            events.extend(Event(d, t, gap) for (d, t), gap in zip(walk.divergences, gaps, strict=True))
            compared.append(walk.compared)

        with engine.instruments.listening(hear):
            answer = engine.generate(_request(prompt, min(max_tokens, room), speculation))
        yield ComparedText(item.key, sum(compared), tuple(events)), len(answer.token_ids)


def question(engine: Engine, text: str) -> tuple[int, ...]:
    """Token ids of a user's words up to the answer; of the plain text where the model has no chat template."""
    codec = engine.codec
    return tuple(codec.encode_chat([{"role": "user", "content": text}]) if codec.has_chat_template else codec.encode(text))


def _request(prompt: tuple[int, ...], max_tokens: int, speculation: SpeculationParams) -> GenerationRequest:
    return GenerationRequest(prompt, SamplingParams(temperature=0.0), StopParams(max_tokens=max_tokens), speculation)


def summary(found: Divergences, journal: Journal, decode: Callable[[list[int]], str]) -> dict[str, Any]:
    """The divergence statistics of the paper."""
    return {
        "texts": len(journal.readings),
        "tokens": journal.tokens,
        "tokens_per_s": journal.tokens / journal.seconds if journal.seconds else None,
        "positions": found.positions,
        "events": found.events,
        "pairs": len(found.pairs),
        "share_of_top_20_percent": found.frequent_share(),
        "pairs_above_lambda": {str(value): found.above(value) for value in LAMBDAS},
        "most_frequent": [
            {
                "draft": draft,
                "target": target,
                "draft_text": decode([draft]),
                "target_text": decode([target]),
                "count": int(count),
                "mean_gap": round(found.pairs[draft, target].mean, 3),
            }
            for draft, target, count in found.entries()[:SHOWN]
        ],
    }


def write_report(directory: Path, report: dict[str, Any]) -> Path:
    path = directory / "report.json"
    write_whole(path, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return path
