import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics import functional as tm

from gnn_dist.errors import InputError
from gnn_dist.training import metrics


def brute_kendall(a, b):
    """τ-b by looking at every pair."""
    score = ties_a = ties_b = 0
    pairs = list(itertools.combinations(range(len(a)), 2))
    for i, j in pairs:
        da, db = np.sign(a[i] - a[j]), np.sign(b[i] - b[j])
        score += da * db
        ties_a += da == 0
        ties_b += db == 0
    return score / math.sqrt((len(pairs) - ties_a) * (len(pairs) - ties_b))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=25))
def test_kendall_is_tau_b(values):
    a, b = np.array(values, float).T
    if (a == a[0]).all() or (b == b[0]).all():
        assert metrics.kendall(torch.tensor(a), torch.tensor(b)) == 0
    else:
        found = metrics.kendall(torch.tensor(a), torch.tensor(b))
        assert found == pytest.approx(brute_kendall(a, b), abs=1e-12)


def test_kendall_equals_the_one_of_torchmetrics():
    a, b = torch.randn(2, 60, generator=torch.Generator().manual_seed(0))
    assert metrics.kendall(a, b) == pytest.approx(float(tm.kendall_rank_corrcoef(a, b)), abs=1e-6)


def test_regression_metrics_match_their_formulas():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 50))
    out, target = torch.tensor(a), torch.tensor(b)
    assert metrics.mae(out, target) == pytest.approx(np.abs(a - b).mean())
    assert metrics.rmse(out, target) == pytest.approx(np.sqrt(((a - b) ** 2).mean()))
    assert metrics.pearson(out, target) == pytest.approx(np.corrcoef(a, b)[0, 1])
    ranks = np.argsort(np.argsort(a)), np.argsort(np.argsort(b))
    assert metrics.spearman(out, target) == pytest.approx(np.corrcoef(*ranks)[0, 1])
    residual = ((a - b) ** 2).sum() / ((b - b.mean()) ** 2).sum()
    assert metrics.r2(out, target) == pytest.approx(1 - residual)


def test_a_constant_prediction_has_no_correlation_rather_than_nan():
    out, target = torch.zeros(9), torch.arange(9.0)
    for name in ("pearson", "spearman", "kendall"):
        assert getattr(metrics, name)(out, target) == 0.0


def test_classification_metrics_match_counting():
    output = torch.tensor([[2.0, 1, 0], [0, 3, 1], [1, 0, 5], [4, 1, 1], [0, 2, 1]])
    target = torch.tensor([0, 1, 1, 2, 1])
    assert metrics.accuracy(output, target) == pytest.approx(3 / 5)
    # class 0: tp 1 fp 1 fn 0; class 1: tp 2 fp 0 fn 1; class 2: tp 0
    assert metrics.f1_macro(output, target) == pytest.approx((2 / 3 + 4 / 5 + 0) / 3)
    assert metrics.f1_micro(output, target) == pytest.approx(3 / 5)


def test_roc_auc_counts_ordered_pairs_and_leaves_out_labels_of_one_kind():
    output = torch.tensor([[0.1, 5.0], [0.4, 1.0], [0.35, 2.0], [0.8, 0.0]])
    target = torch.tensor([[0, 1], [0, 1], [1, 1], [1, 1]])
    positive, negative = [0.35, 0.8], [0.1, 0.4]
    expected = np.mean([p > n for p in positive for n in negative])
    assert metrics.roc_auc(output, target) == pytest.approx(expected)
    assert math.isnan(metrics.roc_auc(output, torch.ones_like(target)))


def test_several_targets_are_averaged_and_listed():
    output, target = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    values = metrics.compute({"mae": metrics.mae}, output, target, ["level", "slack"])
    assert values == {"mae": 1.5, "mae.level": 0.0, "mae.slack": 3.0}


def worst(output, target):
    """A metric of one's own."""
    return (output - target).abs().max()


def test_a_metric_may_be_a_dotted_path_and_a_wrong_name_is_explained():
    chosen = metrics.resolve([f"{__name__}.worst"], "regression")
    values = metrics.compute(chosen, torch.tensor([1.0, 5.0]), torch.tensor([1.0, 2.0]))
    assert values == {"worst": 3.0}
    with pytest.raises(InputError, match=r"metric: there is none named 'mse'.*rmse"):
        metrics.resolve(["mse"], "regression")
