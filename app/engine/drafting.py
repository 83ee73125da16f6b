"""Drafting for all sessions of a step: each session's drafter, the draft model where it pays, and the share of the budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from app.engine.draft.control import LONGEST, DraftAcceptance, Pace, Throughput
from app.engine.draft.model import Chain, DraftCache, DraftModel
from app.engine.draft.tree import Proposal, depth_chances, merge
from app.engine.sampling.choose import is_greedy
from app.engine.session import Session
from racer.budget import CostCurve, share_budget
from racer.tree import DraftTree, Source

FORCED = 0.99  # chance of a token that a grammar forces: an end may come before it
UNPROVEN = 8.0  # plain steps that a session's own record must outweigh, where its drafter states no chances


@dataclass(slots=True)
class Written:
    """What the draft model writes for one session, and what is thought of it.

    fixed: its length does not depend on what it costs. grows: each token is one more row to verify. chances[d]: that token d
    is accepted if those before it are. agreed[d]: whether the session's own tree holds the chain up to token d too.
    """

    chain: Chain
    own: DraftTree
    fixed: bool
    grows: bool
    rivals: list[float]  # [d]: probability that the own tree is accepted d + 1 tokens deep
    chances: list[float] = field(default_factory=list)
    agreed: list[bool] = field(default_factory=list)
    node: int = 0  # where the own tree holds the chain so far, -1 where it does not
    reached: float = 1.0  # probability that the whole chain is accepted

    def weigh(self, acceptance: DraftAcceptance) -> float:
        """Take in the token that was just drawn; returns the accepted tokens to be expected on top of the own tree's."""
        chain, depth = self.chain, len(self.chances)
        self.node = self.own.child_with(self.node, chain.tokens[-1]) if self.node >= 0 else -1
        self.agreed.append(self.node >= 0)
        self.chances.append(acceptance.chance(chain.sampled, self.agreed[-1], chain.probabilities[-1]))
        self.reached *= self.chances[-1]
        return self.reached - (self.rivals[depth] if depth < len(self.rivals) else 0.0)


@dataclass(slots=True)
class Draft:
    """What one session verifies in a step, and how it came about."""

    proposal: Proposal
    written: Written | None = None

    @property
    def drawn(self) -> frozenset[int]:
        """Depths at which the draft model's token is not its likeliest, but came of noise or of the request's settings."""
        likeliest = () if self.written is None else self.written.chain.likeliest
        return frozenset(depth for depth, natural in enumerate(likeliest, 1) if not natural)


class Drafting:
    """The draft phase of a step. Used by the worker thread alone."""

    def __init__(self, model: DraftModel | None) -> None:
        self._model = model
        self.throughput = Throughput()
        self._drafted = 0.0  # seconds of the draft model in this step, by its curve

    def draft(self, sessions: Sequence[Session], curve: CostCurve | None) -> list[Draft]:
        """A draft for each session, those of controlled sessions cut to what pays for all of them together."""
        controlled = [index for index, session in enumerate(sessions) if session.controlled and curve is not None]
        floor = 0.0
        if controlled and curve is not None:
            fixed = sum(session.budget - 1 for session in sessions if not session.controlled)
            floor = curve.floor(len(sessions), max(sessions[index].budget for index in controlled), fixed)
        self._drafted = 0.0
        drafts = [Draft(_own_proposal(session, floor if session.controlled else 0.0)) for session in sessions]
        able = [index for index, session in enumerate(sessions) if _readable(session) is not None]
        if self._model is not None and able:
            pace = None
            if curve is not None and self._model.curve is not None:
                pace = _pace(sessions, drafts, controlled, curve, self._model.curve, self.throughput.rate(len(sessions)))
            self._write_ahead(self._model, sessions, drafts, able, pace)
            self._drafted = pace.drafted if pace is not None else 0.0
        if controlled and curve is not None:
            _cut(sessions, drafts, controlled, curve)
        return drafts

    def account(self, sessions: int, rows: int, tokens: int, curve: CostCurve) -> None:
        """Take in what a step of so many sessions verified and emitted."""
        self.throughput.add(sessions, tokens, float(curve.table(rows)[rows]) + self._drafted)

    def judge(self, session: Session, draft: Draft, path: Sequence[int], tokens: Sequence[int]) -> None:
        """Tell whoever drafted what became of it. path, tokens: as accepted and emitted; tokens[i] came after path[i]."""
        assert session.drafter is not None
        session.drafter.judge(*draft.proposal.own_share(path, tokens))
        if self._model is None or session.draft is None:
            return
        if draft.written is None:
            session.draft.record.rest()
            return
        chain = draft.written.chain
        for token, truth, agreed, probability in zip(
            chain.tokens, tokens, draft.written.agreed, chain.probabilities, strict=False
        ):
            self._model.acceptance.count(chain.sampled, agreed, probability, token == truth)
            session.draft.record.count(token == truth)
            if token != truth:
                break

    def _write_ahead(
        self, model: DraftModel, sessions: Sequence[Session], drafts: list[Draft], able: Sequence[int], pace: Pace | None
    ) -> None:
        """Ask the draft model for those sessions for which that pays, one forward per token for all of them."""
        writing: dict[int, Written] = {}
        for index in able:
            written = self._begin(model, sessions[index], drafts[index].proposal.tree, pace, len(able))
            if written is not None:
                writing[index] = written
        active = list(writing.values())
        while active:
            if pace is not None:
                pace.spend(sum(1 if written.chain.tokens else len(written.chain.missing) for written in active))
            model.advance([written.chain for written in active])
            for written in active:
                gain = written.weigh(model.acceptance)
                if pace is not None:
                    pace.add(gain, grows=written.grows)
            company = len(active)
            active = [written for written in active if self._goes_on(model, written, pace, company)]
        for index, written in writing.items():
            merged = merge(written.own, written.chain.tokens, written.chances)
            drafts[index] = Draft(merged.first(sessions[index].budget), written)

    @staticmethod
    def _begin(model: DraftModel, session: Session, own: DraftTree, pace: Pace | None, company: int) -> Written | None:
        """Ready the draft model for a session, if it is to be asked."""
        cache, speculation = session.draft, session.request.speculation
        assert cache is not None
        hybrid = speculation.drafter == "hybrid"
        set_length = speculation.fixed_budget or pace is None
        most = min(session.budget - 1, session.max_depth, (speculation.gamma or LONGEST) if set_length else LONGEST)
        fixed = pace is None or (speculation.fixed_budget and not hybrid)
        grows = not speculation.fixed_budget
        rivals = depth_chances(own) if hybrid else []
        if pace is not None and not fixed:
            rate = model.acceptance.average(not is_greedy(session.request.sampling), cache.record)
            if not pace.pays(rivals, 1.0, rate, most, company, grows=grows):
                return None
        chain = model.chain(cache, session.request, session.seed, session.output, most, session.rules, session.ends)
        return None if chain is None else Written(chain, own, fixed, grows, rivals)

    @staticmethod
    def _goes_on(model: DraftModel, written: Written, pace: Pace | None, company: int) -> bool:
        chain, done = written.chain, len(written.chain.tokens)
        if chain.ended:
            return False
        if written.fixed or pace is None:
            return done < chain.most
        rate = model.acceptance.average(chain.sampled, chain.cache.record)
        return pace.pays(written.rivals[done:], written.reached, rate, chain.most - done, company, grows=written.grows)


def _readable(session: Session) -> DraftCache | None:
    """The session's draft cache, where the draft model can be asked."""
    return session.draft if session.draft is not None and session.draft.slab is not None and session.max_depth > 0 else None


def _own_proposal(session: Session, floor: float) -> Proposal:
    """The drafter's tree, and what a grammar forces. Where a draft model writes a chain, that is the one chain there is."""
    own = _own_tree(session, floor)
    if session.rules is None or session.budget == 1 or _readable(session) is not None:
        return Proposal(own)
    forced = up_to_end(session.rules.forced()[: min(session.budget - 1, session.max_depth)], session.ends)
    if not forced:
        return Proposal(own)
    return merge(own, forced, [FORCED] * len(forced), Source.GRAMMAR).first(session.budget)


def up_to_end(tokens: list[int], ends: frozenset[int]) -> list[int]:
    """A chain, cut behind the first token that ends the answer."""
    return tokens[: next((place + 1 for place, token in enumerate(tokens) if token in ends), len(tokens))]


def _own_tree(session: Session, floor: float) -> DraftTree:
    if session.budget == 1 or session.max_depth <= 0:
        return DraftTree.root_only(session.output[-1])
    assert session.drafter is not None
    return session.drafter.propose(session.budget, session.max_depth, floor, session.draft_ends)


def _expected(session: Session, tree: DraftTree) -> float:
    """Tokens that a session emits by verifying a tree: by its chances where it states any, else by what it did so far."""
    if len(tree) == 1:
        return 1.0
    if session.estimates:
        return float(tree.confidence.sum())
    counts = session.counts
    return 1.0 + counts.accepted / (counts.steps + UNPROVEN)


def _shares(sessions: Sequence[Session], drafts: Sequence[Draft], controlled: Sequence[int], curve: CostCurve) -> list[int]:
    """Nodes to verify for each controlled session."""
    trees = [draft.proposal.tree for draft in drafts]
    others = sorted(set(range(len(trees))).difference(controlled))
    fixed = sum(len(trees[index]) for index in others)
    beside = sum(_expected(sessions[index], trees[index]) for index in others)
    return share_budget([trees[index].confidence for index in controlled], curve, fixed, beside)


def _cut(sessions: Sequence[Session], drafts: list[Draft], controlled: Sequence[int], curve: CostCurve) -> None:
    for index, nodes in zip(controlled, _shares(sessions, drafts, controlled, curve), strict=True):
        drafts[index].proposal = drafts[index].proposal.first(nodes)


def _pace(
    sessions: Sequence[Session],
    drafts: Sequence[Draft],
    controlled: Sequence[int],
    curve: CostCurve,
    draft_curve: CostCurve,
    rate: float,
) -> Pace:
    """Where the step stands without the draft model."""
    trees = [draft.proposal.tree for draft in drafts]
    for index, share in zip(controlled, _shares(sessions, drafts, controlled, curve) if controlled else (), strict=True):
        trees[index] = trees[index].first(share)
    tokens = sum(_expected(session, tree) for session, tree in zip(sessions, trees, strict=True))
    return Pace(curve, draft_curve, sum(map(len, trees)), tokens, rate)
