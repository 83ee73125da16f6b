"""How T(n) is measured: sizes by synthetic costs, so that nothing is timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from app.engine.cost import measure as cost
from app.engine.cost.measure import Probe
from app.engine.cost.measurements import Measurements
from app.engine.forward.target import PackedTarget, Rows
from app.engine.models.loading import LoadedModel
from racer.budget import CostCurve
from tests.models import VOCABULARY, build
from tests.tiny import loaded

SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96)


def measured(
    monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int], float], half: bool = False
) -> tuple[list[float], set[int]]:
    """The curve's T(0) to T(96), and the sizes that were run."""
    model = build("llama", 0)
    probe = Probe(PackedTarget(model.to(torch.bfloat16) if half else model), VOCABULARY, 8, 256)
    run: list[int] = []

    def step(_probe: object, _cache: object, size: int) -> float:
        run.append(size)
        return seconds(size) * (1.0 + 0.5 / run.count(size))  # a first step takes longer

    monkeypatch.setattr(Probe, "step", step)
    curve = cost._measured(probe, SIZES)
    sizes = set(run)
    assert curve.sizes.tolist() == sorted(sizes)
    return cost.step_costs(probe, curve, None).curve.table(96).tolist(), sizes


@pytest.mark.parametrize("edge", [33, 50, 56, 63, 70])
def test_a_cliff_is_found_where_it_is(monkeypatch: pytest.MonkeyPatch, edge: int) -> None:
    table, sizes = measured(monkeypatch, lambda rows: 0.03 + 0.0001 * rows + (0.05 if rows > edge else 0.0))
    assert table[edge + 1] - table[edge] > 0.04
    assert len(sizes) <= len(SIZES) + cost.HALVINGS


def test_padded_forwards_are_measured_at_their_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    table, sizes = measured(monkeypatch, lambda rows: 0.03 + 0.0001 * rows + (0.05 if rows > 56 else 0.0), half=True)
    assert all(size <= 32 or size % (4 if size <= 64 else 16) == 0 for size in sizes)
    assert table[57] == table[60] and table[53] == table[56]
    assert table[57] - table[56] > 0.04


@pytest.mark.parametrize(
    "seconds",
    [
        lambda rows: 0.03,
        lambda rows: 0.03 + 0.002 * rows,
        lambda rows: 0.03 + 0.0002 * rows,
        lambda rows: 0.03 if rows == 1 else 0.025,  # a second row that is cheaper than one alone
    ],
)
def test_a_line_takes_no_more_sizes(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int], float]) -> None:
    assert measured(monkeypatch, seconds)[1] == set(SIZES)


def test_the_time_for_halving_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "PATIENCE", -1.0)
    _, sizes = measured(monkeypatch, lambda rows: 0.03 if rows < 57 else 0.3)
    assert sizes == set(SIZES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_target_computes_as_many_rows_as_it_says(dtype: torch.dtype) -> None:
    target = PackedTarget(build("llama", 0).to(dtype))
    widths: list[int] = []
    target.model.model.layers[0].mlp.up_proj.register_forward_pre_hook(lambda _, given: widths.append(given[0].shape[-2]))
    slab = target.open(100)
    asked = [1, 2, 31, 32, 33, 36, 37, 63, 64, 65, 80, 81, 97]
    for rows in asked:
        target.forward([Rows.of_text(slab, [3] * rows)])
    assert widths == [target.computed(rows) for rows in asked]
    assert (widths == asked) is (dtype == torch.float32)


def test_the_least_time_of_each_size_counts_but_not_the_first() -> None:
    """Whatever else runs only adds, and a first step is no measure of the others."""
    given = {1: [0.001, 0.03, 0.02, 0.04], 8: [0.9, 0.05, 0.07, 0.06]}
    asked: list[int] = []

    def step(size: int) -> float:
        asked.append(size)
        return given[size][asked.count(size) - 1]

    assert cost._times(step, (1, 8), 3, 1e9) == {1: 0.02, 8: 0.05}
    assert asked == [1, 8] * 4  # in turn, so that a slow moment hits both


def test_out_of_patience_each_size_is_run_once() -> None:
    asked: list[int] = []

    def step(size: int) -> float:
        asked.append(size)
        return float(size)

    assert cost._times(step, (1, 8), 3, -1.0) == {1: 1.0, 8: 8.0}
    assert asked == [1, 8]


def test_costs_are_kept_for_a_model_and_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured with one dtype, thread count, library or device is not taken for another's."""
    model = loaded()
    curve = CostCurve((1, 8), (0.02, 0.03))

    def found(other: LoadedModel | None = None, drafts: bool = False) -> bool:
        return Measurements(tmp_path, other or model, drafts=drafts).load() is not None

    Measurements(tmp_path, model).save(curve)
    assert found() and found(loaded())
    assert not found(loaded(seed=1))
    assert not found(loaded("qwen2"))
    assert not found(replace(model, dtype=torch.bfloat16))
    assert not found(drafts=True)
    for name, value in (
        ("app.engine.cost.measurements.torch.get_num_threads", lambda: 77),
        ("app.engine.cost.measurements.torch.__version__", "0.1"),
        ("app.engine.cost.measurements.processor", lambda: "another"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(name, value)
            assert not found()
    assert found()
