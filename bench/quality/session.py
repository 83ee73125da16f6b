"""One quality run from its plan to the report."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from app.calibration.digest import content_digest, named_digest
from app.engine.correction import CsdConfig
from app.engine.engine import Engine, EngineConfig
from app.engine.errors import InvalidRequest
from app.engine.request import SpeculationParams
from bench import environment as facts
from bench.errors import BenchError
from bench.quality.modes import names, parse
from bench.quality.report import as_markdown, build
from bench.quality.run import ANSWERS, Results, run
from bench.quality.tasks import read_problems
from csd.exchange import ExchangeError, read
from csd.files import write_whole
from csd.memory import Entry

# what headers say otherwise, or not at all: the problems of a smaller limit come first in a larger one
NOT_TOLD = ("threads", "data", "table", "part", "limit")


@dataclass(frozen=True, slots=True)
class QualityPlan:
    """What is measured. part: fractions of each file. table: a correction table to start from. together: answers at once.

    scored: whether each answer's mean log-probability is told.
    """

    target: str
    draft: str | None
    data: tuple[Path, ...]
    modes: str
    table: Path | None
    part: tuple[float, float]
    limit: int | None
    max_tokens: int
    csd_lambda: float
    tau: float
    dtype: str
    device: str
    threads: int | None
    seed: int
    together: int = 1
    scored: bool = True
    prior_rows: int | None = None  # as many as the engine makes where nothing is said

    def settings(self) -> dict[str, Any]:
        """What a run that goes on must have in common with the one before."""
        plain = {name: value for name, value in asdict(self).items() if name not in NOT_TOLD}
        digests = [named_digest(path) for path in self.data if path.exists()]
        table = content_digest(self.table) if self.table and self.table.exists() else None
        if math.isinf(self.csd_lambda):
            plain["csd_lambda"] = "inf"  # JSON has no number for it
        return {**plain, "answers": ANSWERS, "part": list(self.part), "data": digests, "table": table}


def measure(plan: QualityPlan, directory: Path, *, fresh: bool = False) -> str:
    """Run what the directory lacks, write report.json and report.md there, and return the table. Raises BenchError.

    On KeyboardInterrupt the report covers what is complete, and the interrupt goes on.
    """
    modes = parse(plan.modes, draft=plan.draft is not None)
    problems = read_problems(plan.data, plan.part, plan.limit)
    rescuing = any(mode.speculation.verifier == "csd" for mode in modes)
    config = EngineConfig(
        max_running=plan.together, warm_start=False, csd=CsdConfig(allowed=rescuing, lambda_=plan.csd_lambda, tau=plan.tau)
    )
    if plan.prior_rows is not None:
        config = replace(config, prior_rows=plan.prior_rows)
    results = Results(directory, plan.settings(), fresh=fresh)
    engine = Engine.from_pretrained(
        plan.target, config, draft=plan.draft, dtype=plan.dtype, device=plan.device, threads=plan.threads
    )
    with engine:
        try:
            table: list[Entry] = []
            if engine.corrections is not None:
                engine.corrections.rule(SpeculationParams(verifier="csd"))  # refuses a lambda or tau that cannot be
                if plan.table is not None:
                    table = read(plan.table, engine.corrections.fingerprint)
            run(engine, problems, modes, results, plan.max_tokens, table, plan.together, plan.scored)
        except (ExchangeError, InvalidRequest) as error:
            raise BenchError(str(error)) from error
        finally:
            results.close()
            environment = {
                **facts.machine(),
                **facts.model(engine.info),
                "draft": engine.info.draft,
                "lambda": plan.settings()["csd_lambda"],
                "tau": plan.tau,
                "table": None if plan.table is None else plan.table.name,
                "max_tokens": plan.max_tokens,
                "together": plan.together,
            }
            told = {**plan.settings(), "limit": plan.limit}
            asked = {problem.key for problem in problems}
            outcomes = [outcome for outcome in results.outcomes.values() if outcome.problem in asked]
            report = build(outcomes, names(modes), plan.seed, environment)
            if report["problems"]:
                write_whole(directory / "report.json", json.dumps({"settings": told, **report}, indent=2) + "\n")
                write_whole(directory / "report.md", as_markdown(report))
                sys.stderr.write(f"{report['problems']} problems; wrote report.json and report.md in {directory}\n")
    return as_markdown(report)
