"""The draft model: a small model of the target's vocabulary that writes ahead, with a KV slab of its own for each session."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from app.engine.cost.measure import DRAFT_SIZES, Probe, measure
from app.engine.cost.measurements import Measurements
from app.engine.draft.control import DraftAcceptance, Record
from app.engine.errors import ModelLoadError
from app.engine.forward.kv import KVSlab
from app.engine.forward.selfcheck import build_target
from app.engine.forward.target import PackedTarget, Rows
from app.engine.models.loading import LoadedModel
from app.engine.models.vocabulary import SharedVocabulary, share_vocabulary
from app.engine.request import GenerationRequest
from app.engine.sampling.choose import choose, is_greedy
from app.engine.sampling.logits_processor import LogitsProcessor
from racer.budget import CostCurve

logger = logging.getLogger(__name__)

CHEAPER = 0.9  # two rows must cost less than this share of one before a lone row gets a companion


@dataclass(slots=True)
class DraftCache:
    """What the draft model has read of one session.

    Rows [0, agreed) of the slab hold the session's own tokens; the rows behind them hold `ahead`, tokens that were drafted and
    read, and that the session may or may not have taken.
    """

    slab: KVSlab | None  # None while the session has no rows, and once it is closed
    agreed: int = 0
    ahead: list[int] = field(default_factory=list)
    record: Record = field(default_factory=Record)
    closed: bool = False  # the context cannot be represented: it only grows, so it never can again

    def close(self) -> None:
        self.slab, self.ahead, self.closed = None, [], True

    def drop(self) -> None:
        """Give the rows up; what is known of its drafts stays."""
        self.slab, self.agreed, self.ahead = None, 0, []

    def take_over(self, other: DraftCache, rows: int) -> None:
        """Begin with what another cache has read of the same text, at most `rows` tokens of it."""
        rows = min(rows, other.agreed)
        if self.slab is not None and other.slab is not None and rows <= self.slab.capacity:
            self.slab.load(other.slab, rows)
            self.agreed = rows


@dataclass(slots=True)
class Chain:
    """One session's draft in the making. tokens[d] was drawn with probability probabilities[d] at temperature 1; likeliest[d]:
    whether it is what the draft model alone takes for the likeliest, too."""

    request: GenerationRequest
    seed: int
    text_length: int  # prompt and answer so far
    cache: DraftCache
    missing: list[int]  # of the text, to be read before the first token can be drawn
    most: int
    processor: LogitsProcessor | None = None  # of the session: what it forbids is not worth drafting
    ends: frozenset[int] = frozenset()  # ids that end the answer
    tokens: list[int] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    likeliest: list[bool] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether its last token ends the answer: nothing behind it could be kept."""
        return bool(self.tokens) and self.tokens[-1] in self.ends

    @property
    def sampled(self) -> bool:
        return not is_greedy(self.request.sampling)


class DraftModel:
    """Runs the draft model for sessions. Used by the worker thread alone."""

    def __init__(
        self,
        packed: PackedTarget,
        shared: SharedVocabulary,
        max_context: int,
        prefill_chunk: int,
        name: str,
        curve: CostCurve | None = None,
        *,
        refine: bool = True,
    ) -> None:
        """max_context: tokens that the draft model reads. Sessions that outgrow it go on without it.

        curve: what rows of its forward pass cost. refine: let each pass correct that.
        """
        self.packed = packed
        self.shared = shared
        self.max_context = max_context
        self.prefill_chunk = prefill_chunk
        self.name = name
        self.acceptance = DraftAcceptance()
        self.curve = curve
        self.refine = refine
        self.rows_read = 0  # rows forwarded so far
        self._strange = None if shared.complete else torch.from_numpy(np.flatnonzero(~shared.known)).to(packed.device)

    @property
    def bytes_per_token(self) -> int:
        return self.packed.bytes_per_token

    def capacity(self, rows: int) -> int:
        """Rows of the slab of a session whose target has this many.

        A text that is all read is followed by a companion row, for which the target's rows have room beside the root.
        """
        return min(rows, self.max_context + 1)

    def open(self, prompt: Sequence[int], rows: int, slab: KVSlab | None = None) -> DraftCache | None:
        """A cache for a session of this prompt. rows: of its target. None where the model cannot read the prompt.

        slab: one of the right capacity to take, with nothing in it that counts.
        """
        if len(prompt) >= self.max_context or not self.shared.holds(prompt):
            return None
        return DraftCache(self.packed.open(self.capacity(rows)) if slab is None else slab)

    def reopen(self, cache: DraftCache, rows: int, slab: KVSlab | None = None) -> None:
        """Give a cache that was dropped rows again."""
        if not cache.closed:
            cache.slab = self.packed.open(self.capacity(rows)) if slab is None else slab

    def grow(self, cache: DraftCache, rows: int) -> None:
        """Make a cache as large as a target's cache of this many rows needs."""
        if cache.slab is not None and cache.slab.capacity < self.capacity(rows):
            cache.slab = cache.slab.copy(self.capacity(rows), cache.slab.length)

    def catch_up(self, cache: DraftCache, text: Sequence[int]) -> None:
        """Read what is missing of a prompt, a chunk at most: what an earlier turn did not read waits for the next steps."""
        if cache.agreed < len(text):
            self.prefill(cache, text[cache.agreed : cache.agreed + self.prefill_chunk])

    def prefill(self, cache: DraftCache, tokens: Sequence[int]) -> None:
        """Read the next tokens of a prompt, so that the first draft need not."""
        if cache.slab is not None:
            self._forward([(cache.slab, list(tokens))])
            cache.slab.commit(list(range(len(tokens))))
            cache.agreed += len(tokens)

    def chain(
        self,
        cache: DraftCache,
        request: GenerationRequest,
        seed: int,
        output: Sequence[int],
        most: int,
        processor: LogitsProcessor | None = None,
        ends: frozenset[int] = frozenset(),
    ) -> Chain | None:
        """Bring the cache in step with the session's text and prepare a draft of at most `most` tokens below its last one.

        Of what was read ahead the longest part that the session took is kept. None where nothing can be drafted now.
        """
        slab = cache.slab
        if slab is None:
            return None
        prompt = request.prompt_ids
        length = len(prompt) + len(output)
        most = min(most, self.max_context - length + 1)
        if most < 1:
            if length > self.max_context:
                cache.close()
            return None
        cache.agreed = min(cache.agreed, length - 1)  # the last token is always read, for what comes after it
        fresh = _text_from(prompt, output, cache.agreed)
        same = 0
        while same < min(len(cache.ahead), len(fresh) - 1) and cache.ahead[same] == fresh[same]:
            same += 1
        cache.agreed += same
        cache.ahead.clear()
        slab.crop(cache.agreed)
        missing = fresh[same:]
        if not self.shared.holds(missing):
            cache.close()
            return None
        if len(missing) > self.prefill_chunk:  # catch up a chunk per step, so that no step gets long
            self.prefill(cache, missing[: self.prefill_chunk])
            return None
        return Chain(request, seed, length, cache, missing, most, processor if self._covers(processor) else None, ends)

    def advance(self, chains: Sequence[Chain]) -> None:
        """Draw one more token of each chain, in one forward."""
        parts = []
        for chain in chains:
            assert chain.cache.slab is not None
            parts.append((chain.cache.slab, chain.tokens[-1:] or chain.missing))
        logits = self._forward(parts)
        for chain, (slab, tokens) in zip(chains, parts, strict=True):
            slab.commit(list(range(len(tokens))))
            if chain.tokens:
                chain.cache.ahead.append(tokens[0])
            else:
                chain.cache.agreed += len(tokens)
        for chain, token, probability, likeliest in zip(chains, *self._draw(chains, logits), strict=True):
            chain.tokens.append(token)
            chain.probabilities.append(probability)
            chain.likeliest.append(likeliest)

    def _covers(self, processor: LogitsProcessor | None) -> bool:
        """Whether a processor of the target's vocabulary can be applied to this model's logits."""
        return processor is not None and processor.vocab_size == self.shared.size

    def _draw(self, chains: Sequence[Chain], logits: torch.Tensor) -> tuple[list[int], list[float], list[bool]]:
        """The tokens by the rule of the target, noise included, so that equal distributions give equal tokens; their
        probabilities; whether they are the likeliest."""
        likeliest = torch.argmax(logits, -1)
        tokens = likeliest.clone()
        for row, chain in enumerate(chains):
            if chain.processor is not None or chain.sampled:
                position = chain.text_length - len(chain.request.prompt_ids) + len(chain.tokens)
                scores = logits[row] if chain.processor is None else chain.processor.apply(logits[row], chain.tokens)
                tokens[row] = choose(scores, chain.request.sampling, chain.seed, position)
        probabilities = torch.softmax(logits, -1).gather(-1, tokens[:, None])[:, 0].float()
        return tokens.tolist(), probabilities.tolist(), (tokens == likeliest).tolist()

    def _forward(self, parts: Sequence[tuple[KVSlab, list[int]]]) -> torch.Tensor:
        """Logits [sessions, shared ids] after the last token of each part; the caller commits the rows."""
        started = time.perf_counter()
        rows = [Rows.of_text(slab, tokens, len(tokens) - 1) for slab, tokens in parts]
        count = sum(len(tokens) for _, tokens in parts)
        if count == 1 and self._companion():
            slab, tokens = parts[0]
            rows = [Rows(slab, np.array(tokens * 2, np.int64), np.zeros(2, np.int32), np.eye(2, dtype=np.bool_))]
        logits = self.packed.forward(rows)[: len(parts), : self.shared.size]
        if self._strange is not None:
            logits = logits.index_fill(1, self._strange, float("-inf"))
        self.rows_read += count
        if self.curve is not None and self.refine:
            self.curve.observe(count, time.perf_counter() - started)
        return logits

    def _companion(self) -> bool:
        """Whether two rows cost less than one, as they do in bf16 on some idle CPUs."""
        if self.curve is None:
            return False
        costs = self.curve.table(2)
        return bool(costs[2] < CHEAPER * costs[1])


def build_draft(
    target: LoadedModel,
    draft: LoadedModel,
    packed: PackedTarget,
    *,
    max_context: int,
    prefill_chunk: int,
    check: bool,
    fixed: CostCurve | None = None,
    measurements: Measurements | None = None,
) -> DraftModel:
    """The draft model of a target. packed: the target as it runs. max_context: of the engine.

    fixed, measurements: what its passes cost, or where a measurement is kept. Raises ModelLoadError where the vocabularies
    differ or the draft model cannot be rolled back.
    """
    rows = [int(loaded.model.get_output_embeddings().weight.shape[0]) for loaded in (target, draft)]
    shared = share_vocabulary(target.codec, draft.codec, *rows)
    window = min(draft.max_context, max_context)
    if draft.model is target.model:
        runner = packed
    else:
        built, reason = build_target(draft.model, window, check=check)
        if not isinstance(built, PackedTarget):
            raise ModelLoadError(f"{draft.name} cannot be a draft model, since its state cannot be rolled back ({reason}).")
        runner = built
    if window < max_context:
        logger.warning("the draft model reads %d tokens; longer texts of the %d allowed get no draft", window, max_context)
    curve = fixed or measure(Probe(runner, shared.size, 1, window), measurements, DRAFT_SIZES).padded(runner.computed)
    return DraftModel(runner, shared, window, prefill_chunk, draft.name, curve, refine=fixed is None)


def _text_from(prompt: Sequence[int], output: Sequence[int], start: int) -> list[int]:
    if start < len(prompt):
        return [*prompt[start:], *output]
    return list(output[start - len(prompt) :])
