"""Tasks with a right answer: HumanEval's problems, and questions with a reference answer (GSM8K, MATH)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from app.text.surrogates import has_lone_surrogate
from bench.errors import BenchError
from bench.quality.sandbox import passes

Kind = Literal["code", "answer", "open"]
FENCE = re.compile(r"```[ \t]*[\w+.#-]*[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
DIGITS = r"(?:\d+(?:(?:,|\{,\})\d{3}(?!\d))*(?:\.\d+)?|\.\d+)"
TEX_FRACTION = r"\\[dt]?frac\s*(?:\{\s*(-?\d+)\s*\}|(\d))\s*(?:\{\s*(-?\d+)\s*\}|(\d))"
NUMBER = re.compile(rf"[-+]?(?:{DIGITS}(?:/\d+)?|{TEX_FRACTION})")
CLAUSE_END = re.compile(r"[.,;:]\s|\(|\b(?:because|since|as)\b")
WORD = re.compile(r"[^\W\d_]{2}")
SAID = re.compile(r"(?:answer\s+is|answer:|####)\s*(.+)", re.IGNORECASE)
CODE_REQUEST = "Complete the following Python function. Reply with the whole function in one code block.\n\n```python\n{}\n```"

END_OF_BLOCK = "\n```\n"  # a block's end: the beginning of one names its language


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. prompt: what the user says. reference: the right answer, or "". program, tests, entry_point: HumanEval's."""

    key: str
    task: str
    kind: Kind
    prompt: str
    reference: str = ""
    program: str = ""
    tests: str = ""
    entry_point: str = ""

    @property
    def stop(self) -> tuple[str, ...]:
        """Where the answer is complete before the model ends it: after the code block that was asked for, not after the
        explanation that models like to add."""
        return (END_OF_BLOCK,) if self.kind == "code" else ()

    def right(self, reply: str) -> bool | None:
        """Whether the reply solves it; None where no answer is right or wrong."""
        if self.kind == "code":
            return passes(solution(self, reply))
        if self.kind == "answer":
            return equal_answers(final_answer(reply), self.reference)
        return None


def read_problems(paths: Sequence[Path], part: tuple[float, float] = (0.0, 1.0), limit: int | None = None) -> list[Problem]:
    """Problems of each file from the fraction part[0] to part[1] of its lines, taken from the files in turn.

    Raises BenchError, which names file and line.
    """
    groups = []
    for path in paths:
        try:
            lines = [(n, line) for n, line in enumerate(path.read_text("utf-8").split("\n"), start=1) if line.strip()]
        except OSError as error:
            raise BenchError(f"{path} cannot be read: {error.strerror or type(error).__name__}") from error
        except UnicodeDecodeError as error:
            raise BenchError(f"{path}: not UTF-8 text") from error
        first, last = (round(fraction * len(lines)) for fraction in part)
        groups.append([_problem(path.stem, line, f"{path}, line {number}") for number, line in lines[first:last]])
    longest = max(map(len, groups), default=0)
    problems = [group[index] for index in range(longest) for group in groups if index < len(group)]
    seen: set[str] = set()
    for problem in problems:
        if problem.key in seen:
            raise BenchError(f"problem {problem.key} is there twice: give each its own id, and files their own names")
        seen.add(problem.key)
    if not problems:
        raise BenchError(f"no problem in {', '.join(map(str, paths)) or 'no file'}")
    return problems[:limit]


def _problem(stem: str, line: str, place: str) -> Problem:
    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BenchError(f"{place}: not JSON") from error
    if not isinstance(entry, dict):
        raise BenchError(f"{place}: not a JSON object")
    if has_lone_surrogate(entry):
        raise BenchError(f"{place}: a text holds half a surrogate pair, which is no character")
    if "entry_point" in entry:
        names = ("task_id", "prompt", "test", "entry_point")
        if not all(isinstance(entry.get(name), str) and entry[name] for name in names):
            raise BenchError(f"{place}: a problem with tests needs the texts {', '.join(names)}")
        prompt = CODE_REQUEST.format(entry["prompt"].rstrip())
        return Problem(
            f"{stem}/{entry['task_id']}", stem, "code", prompt, "", entry["prompt"], entry["test"], entry["entry_point"]
        )
    turns, identity = entry.get("turns"), entry.get("question_id")
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str) or not turns[0]:
        raise BenchError(f"{place}: turns must be a list of texts, at least one")
    reference = entry.get("reference", entry.get("answer"))
    if isinstance(reference, list):
        reference = reference[0] if len(reference) == 1 else None
    if isinstance(reference, str | int | float) and not isinstance(reference, bool) and str(reference).strip():
        answer = str(reference).rpartition("####")[2].strip()
        if "\\" in answer or _value(answer) is not None or (NUMBER.search(answer) and not WORD.search(answer)):
            return Problem(f"{stem}/{identity}", stem, "answer", turns[0], answer)
    return Problem(f"{stem}/{identity}", stem, "open", turns[0])


def solution(problem: Problem, reply: str) -> str:
    """The program that judges a reply: the prompt's head, the reply's code, the tests.

    The first code block that defines the function counts; without one, the reply is read as the function's body.
    """
    blocks: list[str] = FENCE.findall(reply)
    defines = re.compile(rf"def\s+{re.escape(problem.entry_point)}\s*\(")
    code = next((block for block in blocks if defines.search(block)), None)
    if code is None and defines.search(reply):
        code = reply
    if code is None:
        code = problem.program + (blocks[0] if blocks else reply)
    head = problem.program[: problem.program.find("def ")] if "def " in problem.program else ""
    return f"{head}\n{code}\n{problem.tests}\ncheck({problem.entry_point})\n"


def final_answer(reply: str) -> str:
    """What a reply gives as its answer: the last box, else what follows "answer is", else the last number; "" without any."""
    box = reply.rfind("\\boxed{")
    if box >= 0:
        depth, start = 0, box + len("\\boxed")
        for index in range(start, len(reply)):
            depth += {"{": 1, "}": -1}.get(reply[index], 0)
            if depth == 0:
                return reply[start + 1 : index].strip()
    for said in reversed(SAID.findall(reply)):
        claim = CLAUSE_END.split(said, maxsplit=1)[0].rpartition("=")[2]  # "3 times 4 = 12" says 12
        number = NUMBER.search(claim) or NUMBER.search(said)
        if number:
            return number.group()
    numbers = [number.group() for number in NUMBER.finditer(reply)]
    return numbers[-1] if numbers else ""


def equal_answers(given: str, reference: str) -> bool:
    """Equal as numbers where both are numbers, otherwise as text without spaces, dollars and a last full stop."""
    ours, right = _value(given), _value(reference)
    if ours is not None and right is not None:
        return math.isclose(ours, right, rel_tol=1e-6, abs_tol=1e-9)
    return bool(given) and _plain(given) == _plain(reference)


def _plain(text: str) -> str:
    for noise in ("\\left", "\\right", "\\!", "\\$", "^\\circ", "^{\\circ}", "°"):
        text = text.replace(noise, "")
    text = re.sub(TEX_FRACTION, lambda part: f"\\frac{{{part[1] or part[2]}}}{{{part[3] or part[4]}}}", text)
    return re.sub(r"[\s$]", "", text.replace("{,}", ",").replace("\\%", "%")).rstrip(".")


def _value(text: str) -> float | None:
    cleaned = _plain(text).replace(",", "").rstrip("%")
    fraction = re.fullmatch(r"([-+]?)\\frac\{(-?\d+)\}\{(-?\d+)\}", cleaned)
    try:
        if fraction:
            return float(Fraction(int(fraction[2]), int(fraction[3]))) * (-1 if fraction[1] == "-" else 1)
        return float(Fraction(cleaned)) if "/" in cleaned else float(cleaned)
    except (ValueError, ZeroDivisionError, OverflowError):
        return None
