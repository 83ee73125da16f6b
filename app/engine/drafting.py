"""Drafting for all sessions of a step: each session's drafter, the draft model where it pays, and the share of the budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from app.engine.draft.control import LONGEST, DraftAcceptance, StepForecast, Throughput
from app.engine.draft.model import Chain, DraftModel
from app.engine.draft.tree import MergedTree, depth_chances, merge
from app.engine.sampling.choose import is_greedy
from app.engine.session import Session
from racer.budget import CostCurve, share_budget
from racer.tree import DraftTree, Source

FORCED = 0.99  # chance of a token that a grammar forces: an end may come before it
UNPROVEN = 8.0  # plain steps that a session's own record must outweigh, where its drafter states no chances


@dataclass(slots=True)
class ModelDraft:
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
class Proposal:
    """What one session verifies in a step, and how it came about."""

    session: Session
    merged: MergedTree
    by_model: ModelDraft | None = None

    @property
    def tree(self) -> DraftTree:
        return self.merged.tree

    @property
    def drawn(self) -> frozenset[int]:
        """Depths at which the draft model's token is not its likeliest, but came of noise or of the request's settings."""
        likeliest = () if self.by_model is None else self.by_model.chain.likeliest
        return frozenset(depth for depth, natural in enumerate(likeliest, 1) if not natural)


class Drafting:
    """The draft phase of a step. Used by the worker thread alone."""

    def __init__(self, model: DraftModel | None) -> None:
        self._model = model
        self.throughput = Throughput()
        self._drafted = 0.0  # seconds of the draft model in this step, by its curve

    def draft(self, sessions: Sequence[Session], curve: CostCurve | None) -> list[Proposal]:
        """A draft for each session, those of controlled sessions cut to what pays for all of them together.

        curve: what rows of the target cost; without one no draft is cut.
        """
        floor = 0.0 if curve is None else _floor(sessions, curve)
        proposals = [Proposal(session, _own_proposal(session, floor if session.controlled else 0.0)) for session in sessions]
        self._drafted = 0.0
        if self._model is not None:
            self._ask(self._model, proposals, curve)
        if curve is not None:
            for proposal, nodes in _shares(proposals, curve):
                proposal.merged = proposal.merged.first(nodes)
        return proposals

    def account(self, sessions: int, rows: int, tokens: int, curve: CostCurve) -> None:
        """Take in what a step of this many sessions verified and emitted."""
        self.throughput.add(sessions, tokens, float(curve.table(rows)[rows]) + self._drafted)

    def judge(self, proposal: Proposal, path: Sequence[int], tokens: Sequence[int]) -> None:
        """Tell whoever drafted what became of it. path, tokens: as accepted and emitted; tokens[i] came after path[i]."""
        proposal.session.drafter.judge(*proposal.merged.own_share(path, tokens))
        if self._model is None or proposal.session.draft_cache is None:
            return
        if proposal.by_model is None:
            proposal.session.draft_cache.record.rest()
            return
        chain = proposal.by_model.chain
        for token, truth, agreed, probability in zip(
            chain.tokens, tokens, proposal.by_model.agreed, chain.probabilities, strict=False
        ):
            self._model.acceptance.count(chain.sampled, agreed, probability, token == truth)
            proposal.session.draft_cache.record.count(token == truth)
            if token != truth:
                break

    def _ask(self, model: DraftModel, proposals: Sequence[Proposal], curve: CostCurve | None) -> None:
        """Let the draft model write for those sessions for which that pays, one forward per token for all of them."""
        able = [proposal for proposal in proposals if proposal.session.readable_draft is not None]
        if not able:
            return
        forecast = None
        if curve is not None and model.curve is not None:
            forecast = _forecast(proposals, curve, model.curve, self.throughput.rate(len(proposals)))
        for proposal in able:
            proposal.by_model = self._begin(model, proposal, forecast, len(able))
        written = [proposal.by_model for proposal in able if proposal.by_model is not None]
        active = written
        while active:
            if forecast is not None:
                forecast.spend(sum(1 if one.chain.tokens else len(one.chain.missing) for one in active))
            model.advance([one.chain for one in active])
            for one in active:
                gain = one.weigh(model.acceptance)
                if forecast is not None:
                    forecast.add(gain, grows=one.grows)
            company = len(active)
            active = [one for one in active if self._goes_on(model, one, forecast, company)]
        for proposal in able:
            if proposal.by_model is not None:
                merged = merge(proposal.by_model.own, proposal.by_model.chain.tokens, proposal.by_model.chances)
                proposal.merged = merged.first(proposal.session.budget)
        self._drafted = forecast.drafted if forecast is not None else 0.0

    @staticmethod
    def _begin(model: DraftModel, proposal: Proposal, forecast: StepForecast | None, company: int) -> ModelDraft | None:
        """Ready the draft model for a session, if it is to be asked."""
        session, own = proposal.session, proposal.tree
        cache, speculation = session.draft_cache, session.request.speculation
        assert cache is not None
        hybrid = speculation.drafter == "hybrid"
        set_length = speculation.fixed_budget or forecast is None
        most = min(session.budget - 1, session.max_depth, (speculation.gamma or LONGEST) if set_length else LONGEST)
        fixed = forecast is None or (speculation.fixed_budget and not hybrid)
        grows = not speculation.fixed_budget
        rivals = depth_chances(own) if hybrid else []
        if forecast is not None and not fixed:
            rate = model.acceptance.average(not is_greedy(session.request.sampling), cache.record)
            if not forecast.pays(rivals, 1.0, rate, most, company, grows=grows):
                return None
        seed, output = session.generation.seed, session.answer.tokens
        chain = model.chain(cache, session.request, seed, output, most, session.processor, session.ends)
        return None if chain is None else ModelDraft(chain, own, fixed, grows, rivals)

    @staticmethod
    def _goes_on(model: DraftModel, written: ModelDraft, forecast: StepForecast | None, company: int) -> bool:
        chain, done = written.chain, len(written.chain.tokens)
        if chain.ended:
            return False
        if written.fixed or forecast is None:
            return done < chain.most
        rate = model.acceptance.average(chain.sampled, chain.cache.record)
        return forecast.pays(written.rivals[done:], written.reached, rate, chain.most - done, company, grows=written.grows)


def _floor(sessions: Sequence[Session], curve: CostCurve) -> float:
    """The chance below which no node of a controlled session can pay."""
    budgets = [session.budget for session in sessions if session.controlled]
    if not budgets:
        return 0.0
    return curve.floor(len(sessions), max(budgets), sum(session.budget - 1 for session in sessions if not session.controlled))


def _own_proposal(session: Session, floor: float) -> MergedTree:
    """The drafter's tree, and what a grammar forces. Where a draft model writes a chain, that is the one chain there is."""
    own = _own_tree(session, floor)
    if session.processor is None or session.budget == 1 or session.readable_draft is not None:
        return MergedTree(own)
    forced = up_to_end(session.processor.forced()[: min(session.budget - 1, session.max_depth)], session.ends)
    if not forced:
        return MergedTree(own)
    return merge(own, forced, [FORCED] * len(forced), Source.GRAMMAR).first(session.budget)


def up_to_end(tokens: list[int], ends: frozenset[int]) -> list[int]:
    """A chain, cut behind the first token that ends the answer."""
    return tokens[: next((place + 1 for place, token in enumerate(tokens) if token in ends), len(tokens))]


def _own_tree(session: Session, floor: float) -> DraftTree:
    if session.budget == 1 or session.max_depth <= 0:
        return DraftTree.root_only(session.answer.tokens[-1])
    return session.drafter.propose(session.budget, session.max_depth, floor, session.draft_ends)


def _expected(proposal: Proposal, tree: DraftTree) -> float:
    """Tokens that a session emits by verifying a tree: by its chances where it states any, else by what it did so far."""
    if len(tree) == 1:
        return 1.0
    if proposal.session.estimates:
        return float(tree.confidence.sum())
    counts = proposal.session.answer.counts
    return 1.0 + counts.accepted / (counts.steps + UNPROVEN)


def _shares(proposals: Sequence[Proposal], curve: CostCurve) -> list[tuple[Proposal, int]]:
    """The proposals of controlled sessions, and how many nodes of each to verify."""
    controlled = [proposal for proposal in proposals if proposal.session.controlled]
    if not controlled:
        return []
    others = [proposal for proposal in proposals if not proposal.session.controlled]
    fixed = sum(len(proposal.tree) for proposal in others)
    beside = sum(_expected(proposal, proposal.tree) for proposal in others)
    nodes = share_budget([proposal.tree.confidence for proposal in controlled], curve, fixed, beside)
    return list(zip(controlled, nodes, strict=True))


def _forecast(proposals: Sequence[Proposal], curve: CostCurve, draft_curve: CostCurve, rate: float) -> StepForecast:
    """Where the step stands without the draft model. rate: tokens a second of the last steps."""
    nodes = {id(proposal): share for proposal, share in _shares(proposals, curve)}
    trees = [proposal.tree.first(nodes.get(id(proposal), len(proposal.tree))) for proposal in proposals]
    tokens = sum(_expected(proposal, tree) for proposal, tree in zip(proposals, trees, strict=True))
    return StepForecast(curve, draft_curve, sum(map(len, trees)), tokens, rate)
