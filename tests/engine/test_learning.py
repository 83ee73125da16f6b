"""What the drafter is taught: every token once, every row with the token before it, and the accepted path last.

Bad drafts change no output, so nothing else would notice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from app.engine.engine import Engine
from app.engine.generation import Generation
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams
from app.engine.step import Step
from csd.verify import Walk
from racer.drafter import Drafter, DrafterState
from racer.limits import NO_ENDS, Ends
from racer.tree import DraftTree
from tests.engine.drafting import FLAT
from tests.engine.test_siblings import answers
from tests.engine.turns import FIRST, GREEDY, turn
from tests.tiny import tiny_engine

TREES = SpeculationParams("racer", policy="paper", max_nodes=24, fixed_budget=True)
PLAINLY = SpeculationParams("racer", policy="paper", max_nodes=1)
PAIRED = SamplingParams(0.9, seed=3)
K = 8


@dataclass
class Lesson:
    """One call of `learn`."""

    tokens: list[int]
    ids: np.ndarray
    probs: np.ndarray
    before: list[int]


class Pupil(Drafter):
    """A drafter that notes what it is told."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__()
        self.drafter = drafter
        self.learns = drafter.learns
        self.text: list[int] = []
        self.lessons: list[Lesson] = []
        self.verdicts: list[tuple[int, list[int], int]] = []

    @property
    def state(self) -> DrafterState:
        return self.drafter.state

    @property
    def nbytes(self) -> int:
        return self.drafter.nbytes

    def propose(self, budget: int, max_depth: int, floor: float = 0.0, ends: Ends = NO_ENDS) -> DraftTree:
        return self.drafter.propose(budget, max_depth, floor, ends)

    def observe(self, tokens: Any) -> None:
        self.text += [int(token) for token in tokens]
        self.drafter.observe(tokens)

    def learn(self, tokens: Any, ids: Any, probs: Any, previous: Any = None) -> None:
        self.lessons.append(Lesson(tokens.tolist(), ids.copy(), probs.copy(), previous.tolist()))
        self.drafter.learn(tokens, ids, probs, previous)

    def judge(self, verified: int, path: Sequence[int], truth: int) -> None:
        self.verdicts.append((verified, list(path), truth))
        self.drafter.judge(verified, path, truth)

    @property
    def rows(self) -> list[tuple[int, int]]:
        """(token before, token) of every row, in the order of learning."""
        return [pair for lesson in self.lessons for pair in zip(lesson.before, lesson.tokens, strict=True)]

    def together(self, name: str) -> np.ndarray:
        """The ids or probabilities of all rows."""
        return np.concatenate([getattr(lesson, name) for lesson in self.lessons])


@dataclass
class School:
    pupils: list[Pupil] = field(default_factory=list)
    steps: list[tuple[Drafter, DraftTree, Walk, int]] = field(default_factory=list)  # and which of the pupil's lessons it was


@contextmanager
def school(**settings: Any) -> Iterator[tuple[Engine, School]]:
    """An engine whose drafters are pupils, and what its steps verified."""
    with tiny_engine(eos=frozenset(), **{"cost_curve": FLAT, **settings}) as engine:
        seen = School()
        new_drafter, walk = engine._scheduler.slots.new_drafter, engine._decoder._walk

        def new_pupil(generation: Generation) -> Drafter:
            seen.pupils.append(Pupil(new_drafter(generation)))
            return seen.pupils[-1]

        def note_and_walk(drafts: Any, logits: Any) -> list[Step]:
            steps = walk(drafts, logits)
            for step in steps:
                drafter: Any = step.session.drafter
                seen.steps.append((drafter, step.tree, step.walk, len(drafter.lessons)))
            return steps

        engine._scheduler.slots.new_drafter = new_pupil
        engine._decoder._walk = note_and_walk  # type: ignore[assignment, method-assign]
        yield engine, seen


def successors_of(engine: Engine, text: Sequence[int]) -> list[int]:
    """The target's likeliest tokens after a text, by a plain forward."""
    logits = engine._decoder.target.native_logits(list(text))[-1]  # type: ignore[attr-defined]
    ids: list[int] = logits.topk(K).indices.tolist()
    return ids


def ask(prompt: Sequence[int], speculation: SpeculationParams, *, tokens: int = 30, **more: Any) -> GenerationRequest:
    return GenerationRequest(tuple(prompt), PAIRED, StopParams(tokens), speculation, **more)


@pytest.mark.parametrize("chunk", [7, 16, 49, 50, 256])
def test_a_prompt_is_taught_in_order_whatever_the_chunks(chunk: int) -> None:
    with school(prefill_chunk=chunk) as (engine, seen):
        done = engine.generate(ask(FIRST, TREES, tokens=1))
        (pupil,) = seen.pupils
        assert pupil.text == [*FIRST, *done.token_ids]
        assert pupil.rows == list(zip([-1, *FIRST], FIRST, strict=False))
        ids = pupil.together("ids")
        assert [ids[place].tolist() for place in (0, 6, 7, 49)] == [
            successors_of(engine, FIRST[: place + 1]) for place in (0, 6, 7, 49)
        ]


def check_steps(engine: Engine, seen: School, pupil: Pupil, prompt: Sequence[int], answer: Sequence[int]) -> int:
    """Every node was taught with the token before it, and the path last; returns the accepted drafts."""
    assert pupil.text == [*prompt, *answer]
    text, kept = [*prompt, answer[0]], 0
    steps = [step[1:] for step in seen.steps if step[0] is pupil]
    for (tree, walk, number), (verified, path, truth) in zip(steps, pupil.verdicts, strict=True):
        lesson = pupil.lessons[number]
        assert text[-1] == tree.tokens[0]
        nodes = list(range(len(tree)))
        rest = [node for node in nodes if node not in walk.path]
        assert lesson.tokens == tree.tokens[[*rest, *walk.path]].tolist()
        before = {0: text[-2], **{node: int(tree.tokens[tree.parents[node]]) for node in nodes[1:]}}
        assert lesson.before == [before[node] for node in [*rest, *walk.path]]
        for place in range(len(walk.path)):
            context = [*text, *(int(tree.tokens[other]) for other in walk.path[1 : place + 1])]
            assert lesson.ids[len(rest) + place].tolist() == successors_of(engine, context)
        emitted = list(walk.tokens)[: len(prompt) + len(answer) - len(text)]  # up to where the answer ended
        assert (verified, path, truth) == (len(tree), list(walk.path)[: len(emitted)], emitted[-1])
        text += emitted
        kept += len(emitted) - 1
    assert text == pupil.text
    return kept


def test_every_node_is_taught_with_the_token_before_it_and_the_path_last() -> None:
    with school() as (engine, seen):
        done = engine.generate(ask(FIRST, TREES, tokens=80))
        assert check_steps(engine, seen, seen.pupils[0], FIRST, done.token_ids) > 5


def test_sessions_that_run_together_are_each_taught_their_own() -> None:
    with school() as (engine, seen):
        prompts = [FIRST, FIRST[7:], tuple(range(30, 50)) * 2]
        done = engine.generate_all([ask(prompt, TREES, tokens=40) for prompt in prompts])
        by_prompt = {tuple(pupil.text[:30]): pupil for pupil in seen.pupils}
        kept = [
            check_steps(engine, seen, by_prompt[tuple(prompt[:30])], prompt, one.token_ids)
            for prompt, one in zip(prompts, done, strict=True)
        ]
        assert sum(kept) > 5


def test_what_was_accepted_behind_the_end_of_an_answer_is_not_taken_in() -> None:
    """A stop string may be complete in the middle of an accepted run."""
    with school() as (engine, seen):
        prompt, words = FIRST[:8] * 3, FIRST[:8]
        sampling = SamplingParams(0.0, logit_bias=tuple((token, 20.0) for token in words))
        whole = engine.generate(GenerationRequest(prompt, sampling, StopParams(30), TREES))
        cut = 0
        for last in range(4, 24):
            stop = engine.codec.decode(list(whole.token_ids[last - 3 : last]))
            done = engine.generate(GenerationRequest(prompt, sampling, StopParams(30, stop=(stop,)), TREES))
            pupil = seen.pupils[-1]
            assert pupil.text == [*prompt, *done.token_ids]
            walk = next(step[2] for step in reversed(seen.steps) if step[0] is pupil)
            cut += walk.tokens[-1] != done.token_ids[-1] or len(walk.tokens) > len(pupil.verdicts[-1][1])
        assert cut > 0


def test_the_row_of_the_first_answer_token_stands_behind_the_last_of_the_prompt() -> None:
    with school() as (engine, seen):
        done = engine.generate(ask(FIRST, TREES, tokens=2))
        lesson = seen.pupils[0].lessons[1]
        root = len(lesson.tokens) - len(seen.steps[0][2].path)
        assert (lesson.before[root], lesson.tokens[root]) == (FIRST[-1], done.token_ids[0])


@pytest.mark.parametrize("running", [8, 2, 1])
def test_every_choice_of_a_prompt_is_taught_what_the_first_was(running: int) -> None:
    group = object()
    with school(prefill_chunk=16, max_running=running) as (engine, seen):
        requests = [
            GenerationRequest(FIRST, SamplingParams(0.9, seed=seed), StopParams(6), TREES, group=group) for seed in range(4)
        ]
        texts = answers(engine, requests)
        assert len(seen.pupils) == 4
        for pupil in seen.pupils:
            assert pupil.rows[:50] == list(zip([-1, *FIRST], FIRST, strict=False))
            learnt = pupil.together("ids")
            assert learnt[49].tolist() == successors_of(engine, FIRST)
            assert learnt[20].tolist() == successors_of(engine, FIRST[:21])
        assert sorted(tuple(pupil.text) for pupil in seen.pupils) == sorted((*FIRST, *text) for text in texts)


def test_turns_of_a_conversation_teach_what_one_long_prompt_does() -> None:
    """Without trees every row belongs to the text, so the whole of it can be compared."""
    with school(prefill_chunk=16) as (engine, seen):
        text = FIRST
        for _ in range(3):
            done = turn(engine, text, "c", speculation=PLAINLY, n=9)
            text = (*text, *done.token_ids, 70, 71)
        pupil = seen.pupils[0]
        read = text[:-2]
        assert pupil.text == list(read)
        assert pupil.rows == list(zip([-1, *read], read, strict=False))[:-1]  # nothing came after the last token
        turn(engine, read, None, speculation=PLAINLY, n=1)
        whole = seen.pupils[-1]
        assert whole is not pupil
        count = len(pupil.rows)
        assert whole.rows[:count] == pupil.rows
        assert np.array_equal(pupil.together("ids"), whole.together("ids")[:count])
        assert np.allclose(pupil.together("probs"), whole.together("probs")[:count], atol=1e-5)


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (lambda text: (*text, 70), True),
        (lambda text: (*text[:20], 90, *text[21:], 70), False),  # an earlier message was edited
        (lambda text: text[:30], False),  # rolled back
        (lambda text: text[5:], False),  # the beginning was cut off
        (lambda text: (*text[:49], 90, *text[50:]), False),  # the last token of the prompt is another
        (lambda text: (*text[:50], 90), True),  # another answer than was given
    ],
)
@pytest.mark.parametrize("speculation", [TREES, PLAINLY], ids=["trees", "plainly"])
def test_a_drafter_goes_on_only_where_its_prompt_still_stands(change: Any, kept: bool, speculation: SpeculationParams) -> None:
    with school(prefill_chunk=16) as (engine, seen):
        one = turn(engine, FIRST, "c", speculation=speculation, n=9)
        text = change((*FIRST, *one.token_ids))
        two = turn(engine, text, "c", speculation=speculation, sampling=GREEDY, n=9)
        first, second = seen.pupils
        if not kept:
            assert second.text == [*text, *two.token_ids]
            assert first.text == [*FIRST, *one.token_ids]
        else:
            assert second.text == []
            common = 50 if text[50] == 90 else 59
            assert first.text == [*FIRST, *one.token_ids, *text[common:], *two.token_ids]
