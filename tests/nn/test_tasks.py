"""Losses are sums over seeds; targets that do not suit a task are refused at the border."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from gnn_dist.errors import InputError
from gnn_dist.nn.tasks import Task


def spec(dtype: str, *shape: int) -> SimpleNamespace:
    return SimpleNamespace(dtype=dtype, shape=shape)


def test_loss_is_the_sum_over_seeds() -> None:
    torch.manual_seed(0)
    task = Task.build("classification", spec("int64"), {"num_classes": 4})
    output, y = torch.randn(7, 4), torch.randint(0, 4, (7,))
    expected = F.cross_entropy(output, y, reduction="sum")
    torch.testing.assert_close(task.loss_sum(output, y), expected)
    torch.testing.assert_close(task.loss_sum(output, y[:, None].int()), expected)
    parts = task.loss_sum(output[:3], y[:3]) + task.loss_sum(output[3:], y[3:])
    torch.testing.assert_close(parts, expected)


def test_several_labels_are_averaged_for_each_seed() -> None:
    torch.manual_seed(0)
    output, y = torch.randn(5, 3), torch.randint(0, 2, (5, 3))
    task = Task.build("multilabel", spec("uint8", 3), {})
    expected = F.binary_cross_entropy_with_logits(output, y.float()) * 5
    torch.testing.assert_close(task.loss_sum(output, y.byte()), expected)
    y = torch.randn(5, 3)
    for loss, oracle in (
        (None, F.mse_loss),
        ("mse", F.mse_loss),
        ("l1", F.l1_loss),
        ("huber", F.huber_loss),
    ):
        task = Task.build("regression", spec("float32", 3), {}, loss)
        torch.testing.assert_close(task.loss_sum(output, y), oracle(output, y) * 5)
        one = Task.build("regression", spec("float32"), {}, loss)
        torch.testing.assert_close(
            one.loss_sum(output[:, :1], y[:, 0]), oracle(output[:, 0], y[:, 0]) * 5
        )


def test_no_seeds_give_a_loss_of_zero() -> None:
    task = Task.build("regression", spec("float32", 2), {})
    output = torch.randn(0, 2, requires_grad=True)
    assert task.loss_sum(output, torch.randn(0, 2)).item() == 0


def test_predictions_are_probabilities_or_values() -> None:
    output = torch.randn(4, 3)
    classes = Task.build("classification", spec("int32"), {"num_classes": 3}).predict(output)
    torch.testing.assert_close(classes, output.exp() / output.exp().sum(1, keepdim=True))
    labels = Task.build("multilabel", spec("float32", 3), {}).predict(output)
    torch.testing.assert_close(labels, 1 / (1 + (-output).exp()))
    assert torch.equal(Task.build("regression", spec("float32", 3), {}).predict(output), output)


@pytest.mark.parametrize(
    ("kind", "target", "info", "loss", "message"),
    [
        ("ranking", spec("int64"), {}, None, "'ranking' is none of classification"),
        ("classification", spec("float32"), {}, None, r"the target is float32\[N\]"),
        ("classification", spec("int64", 3), {}, None, r"the target is int64\[N, 3\]"),
        ("classification", spec("int64"), {}, None, r"set graph\.info\['num_classes'\]"),
        ("classification", spec("int64"), {"num_classes": 1}, None, "is 1; a task needs 2"),
        ("multilabel", spec("int64"), {}, None, r"takes 0/1 labels \[N, T\]"),
        ("regression", spec("int64"), {}, None, "convert it to float32"),
        ("regression", spec("float32"), {}, "rmse", "has no loss 'rmse'; use one of mse, l1"),
        ("regression", spec("float32"), {}, "no_such_package.f", "no module 'no_such_package'"),
    ],
)
def test_targets_that_do_not_suit_are_refused(kind, target, info, loss, message) -> None:
    with pytest.raises(InputError, match=message):
        Task.build(kind, target, info, loss)


def test_a_model_of_the_wrong_width_is_named() -> None:
    task = Task.build("classification", spec("int64"), {"num_classes": 4})
    with pytest.raises(InputError, match=r"\(2, 3\) for 2 seeds.*needs .*\(2, 4\)"):
        task.loss_sum(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))


def test_labels_out_of_range_are_found() -> None:
    classes = Task.build("classification", spec("int64"), {"num_classes": 3})
    y = np.array([0, -1, 2, 3])
    classes.check(y, np.array([0, 2]))
    classes.check(y, np.array([], np.int64))  # a part may hold nothing of a split
    with pytest.raises(InputError, match=r"node 1 has -1, not a class in 0 \.\. 2 .*2 nodes"):
        classes.check(y)
    labels = Task.build("multilabel", spec("float32", 2), {})
    with pytest.raises(InputError, match=r"node 1 has 0\.5, not 0 or 1"):
        labels.check(np.array([[0, 1], [1, 0.5]]))
    values = Task.build("regression", spec("float32"), {})
    with pytest.raises(InputError, match="node 7 has nan, not a finite number"):
        values.check(np.array([0.0] * 7 + [np.nan]), np.array([3, 7]))


def test_a_loss_of_the_users_own(monkeypatch) -> None:
    def double_mse(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return 2 * (output - target).square().mean(1)

    monkeypatch.setattr("gnn_dist.nn.tasks.double_mse", double_mse, raising=False)
    task = Task.build("regression", spec("float32"), {}, "gnn_dist.nn.tasks.double_mse")
    output, y = torch.randn(3, 1), torch.randn(3)
    torch.testing.assert_close(
        task.loss_sum(output, y), 2 * F.mse_loss(output[:, 0], y, reduction="sum")
    )
