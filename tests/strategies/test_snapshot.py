"""Every policy, encoding and reuse gives the loss and gradients of PyG's layers applied one
snapshot at a time."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from support.snapshot_peers import oracle, ours_by_peer_name
from torch import nn

from gnn_dist.datasets import temporal
from gnn_dist.dynamic import ENCODINGS, SnapshotSequence, WindowBatch, Windows, segments
from gnn_dist.dynamic.groups import Segments
from gnn_dist.dynamic.normalise import Factors
from gnn_dist.errors import InputError
from gnn_dist.nn.recurrent import functional, models
from gnn_dist.nn.recurrent.aggregate import Moved, move
from gnn_dist.strategies.snapshot import Options, SnapshotStrategy, train_epoch
from gnn_dist.strategies.snapshot_scope import Groups
from gnn_dist.strategies.snapshot_tasks import (
    EdgeClassification,
    LinkPrediction,
    NodeRegression,
    ranking_metrics,
)

torch_geometric = pytest.importorskip("torch_geometric")

WINDOW = 4
MODELS: dict[str, Callable[[int], nn.Module]] = {
    "tgcn": lambda f: models.TGCN(f, 6),
    "mpnn_lstm": lambda f: models.MPNNLSTM(f, 5, WINDOW),
    "gconv_gru": lambda f: models.GConvGRU(f, 5, 3),
    "gconv_gru_1": lambda f: models.GConvGRU(f, 5, 1),
    "evolve_gcn_o": lambda f: models.evolve_gcn_o(f, 5),
    "evolve_gcn_h": lambda f: models.evolve_gcn_h(f),
}


def weighted(kind: str) -> SnapshotSequence:
    sequence = temporal.synthetic(40, 160, 12, change=0.2, features=3, seed=5)
    rng = np.random.default_rng(0)
    edges = [sequence.snapshot(t).edge_index() for t in range(12)]
    fixed = rng.uniform(0.5, 2, (40, 40))
    if kind == "shared":
        weights = [fixed[tuple(e)] for e in edges]
    else:
        weights = [rng.uniform(0.5, 2, e.shape[1]) for e in edges]
    return SnapshotSequence.from_lists(edges, 40, weights=weights, x=sequence.x, y=sequence.y)


SEQUENCES: dict[str, Callable[[], SnapshotSequence]] = {
    "overlap": lambda: temporal.synthetic(40, 160, 12, change=0.1, features=3, seed=1),
    "none": lambda: temporal.synthetic(40, 160, 12, change=1.0, features=3, seed=2),
    "growing": lambda: temporal.synthetic(40, 160, 12, growth=0.15, features=3, seed=3),
    "shared": lambda: weighted("shared"),
    "valued": lambda: weighted("valued"),
}


def built(name: str, sequence: SnapshotSequence, seed: int = 0) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(seed)
    model = MODELS[name](sequence.num_features).double()
    for p in model.parameters():
        if p.dim() == 1:
            nn.init.normal_(p, std=0.3)
    return model, NodeRegression(model.out_features).double()


def compare(sequence: SnapshotSequence, name: str, options: Options, batch: WindowBatch) -> None:
    model, task = built(name, sequence)
    strategy = SnapshotStrategy(sequence, model, task, options)
    for _ in range(2):  # the second time from what was kept
        for p in strategy.parameters():
            p.grad = None
        loss = strategy.accumulate(batch)
        ours = {n: g.clone() for n, g in ours_by_peer_name(model, task).items()}
        expected, theirs = oracle(sequence, model, task, batch)
        assert loss == pytest.approx(expected, rel=1e-10)
        for parameter, gradient in theirs.items():
            torch.testing.assert_close(
                ours[parameter], gradient, rtol=1e-9, atol=1e-11, msg=lambda m, p=parameter: p + m
            )


@pytest.mark.parametrize("data", SEQUENCES)
@pytest.mark.parametrize("name", MODELS)
def test_every_model_equals_pyg_layers_on_every_kind_of_sequence(name: str, data: str) -> None:
    if name == "mpnn_lstm" and data == "growing":
        pytest.skip("PyG's batch norm has no active mask: see test_standardise_ignores_inactive")
    sequence = SEQUENCES[data]()
    compare(sequence, name, Options("grouped", group=4), WindowBatch(0, 0, (2, 3, 4, 5), WINDOW))


@pytest.mark.parametrize(
    "options",
    [
        Options("sequential"),
        *(Options("grouped", group=g, encoding=e) for g in (1, 3, 16) for e in ENCODINGS),
        Options("grouped", cache_bytes=0),
        Options("grouped", checkpoint=2),
        Options("windows"),
        Options("vertices"),
        Options("snapshots"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["tgcn", "mpnn_lstm"])
@pytest.mark.parametrize("starts", [(1, 2, 3), (0, 5), (4,)], ids=str)
def test_every_policy_equals_pyg_layers(name: str, options: Options, starts: tuple) -> None:
    sequence = SEQUENCES["valued"]()
    compare(sequence, name, options, WindowBatch(0, 0, starts, WINDOW))


@pytest.mark.parametrize("name", ["gconv_gru", "evolve_gcn_o", "evolve_gcn_h"])
@pytest.mark.parametrize("policy", ["sequential", "windows", "vertices"])
def test_the_other_models_equal_pyg_layers_under_other_policies(name: str, policy: str) -> None:
    batch = WindowBatch(0, 0, (1, 2, 3), WINDOW)
    compare(SEQUENCES["overlap"](), name, Options(policy, checkpoint=2), batch)


@pytest.mark.parametrize("name", ["tgcn", "mpnn_lstm", "evolve_gcn_h"])
@pytest.mark.parametrize("file", ["covid", "chickenpox", "tennis", "bitcoin", "college"])
def test_real_sequences_give_the_gradients_of_pyg_layers(
    name: str, file: str, shared_data: Path
) -> None:
    folder = shared_data / "dynamic"
    sequence = {
        "covid": lambda: temporal.england_covid(folder / "england_covid.json", lags=3),
        "chickenpox": lambda: temporal.chickenpox(folder / "chickenpox.json", lags=3),
        "tennis": lambda: temporal.twitter_tennis(folder / "twitter_tennis_rg17.json", "raw"),
        "bitcoin": lambda: temporal.bitcoin(folder / "soc-sign-bitcoinalpha.csv"),
        "college": lambda: temporal.college_messages(folder / "CollegeMsg.txt", merge="count"),
    }[file]()[3:12]
    if sequence.y is None:  # degrees of the next snapshot stand in for a target
        y = np.roll(sequence.x[..., 0], -1, axis=0)
        object.__setattr__(sequence, "y", y)
    if name != "tgcn":
        object.__setattr__(sequence, "active", None)
    for policy in ("grouped", "vertices"):
        compare(sequence, name, Options(policy), WindowBatch(0, 0, (1, 2, 3), WINDOW))


@pytest.mark.parametrize("name", ["tgcn", "mpnn_lstm", "gconv_gru"])
def test_the_path_of_other_devices_equals_pyg_layers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = []

    def moved(groups: Groups, key: tuple, segments: Segments, factors: Factors) -> Moved:
        copies.append(key)
        return move(segments, factors, torch.device("cpu"), torch.float64)

    monkeypatch.setattr(Groups, "moved", moved)
    monkeypatch.setattr(models, "gru", lambda *a, checkpoint, **k: functional.gru_torch(*a, **k))
    monkeypatch.setattr(
        models, "lstm2", lambda *a, checkpoint, **k: functional.lstm2_torch(*a, **k)
    )
    for policy in ("grouped", "vertices"):
        compare(SEQUENCES["valued"](), name, Options(policy), WindowBatch(0, 0, (1, 2, 3), WINDOW))
    assert copies


def gradients(strategy: SnapshotStrategy, batch: WindowBatch) -> list[torch.Tensor]:
    for p in strategy.parameters():
        p.grad = None
    loss = strategy.accumulate(batch)
    return [torch.tensor(loss), *(p.grad for p in strategy.parameters() if p.grad is not None)]


def test_float32_agrees_to_rounding() -> None:
    sequence = SEQUENCES["overlap"]()
    batch = WindowBatch(0, 0, (1, 2, 3, 4), WINDOW)
    for name in ("tgcn", "mpnn_lstm"):
        found = []
        for dtype in (torch.float64, torch.float32):
            model, task = built(name, sequence)
            strategy = SnapshotStrategy(sequence, model.to(dtype), task.to(dtype), Options())
            found.append(gradients(strategy, batch))
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a.double(), b.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["tgcn", "mpnn_lstm", "gconv_gru"])
def test_prefetch_caching_and_delta_decoding_do_not_change_a_bit(name: str) -> None:
    sequence = SEQUENCES["overlap"]()
    assert not all(frame.keyframe for frame in sequence.frames)
    plain = SnapshotSequence(
        **{
            **{f: getattr(sequence, f) for f in ("num_nodes", "weights", "x", "y")},
            "frames": tuple(
                type(frame)(True, sequence.keys(t), np.empty(0, np.int64), frame.num_edges)
                for t, frame in enumerate(sequence.frames)
            ),
        }
    )
    batches = list(Windows(12, WINDOW).batches(np.arange(9), 3, seed=1))
    outcomes = []
    for data, options in (
        (sequence, Options()),
        (sequence, Options(prefetch=False)),
        (sequence, Options(cache_bytes=0)),
        (sequence, Options(group_bytes=1)),
        (plain, Options()),
    ):
        model, task = built(name, data)
        strategy = SnapshotStrategy(data, model, task, options)
        optimizer = torch.optim.Adam(strategy.parameters(), 0.01)
        losses = [train_epoch(strategy, batches, optimizer) for _ in range(2)]
        outcomes.append((losses, [p.detach().clone() for p in strategy.parameters()]))
    for losses, parameters in outcomes[1:]:
        assert losses == outcomes[0][0]
        assert all(torch.equal(a, b) for a, b in zip(parameters, outcomes[0][1], strict=True))


def test_dropout_is_the_same_under_every_policy_and_changes_with_the_epoch() -> None:
    sequence = SEQUENCES["overlap"]()
    found = {}
    for policy in ("sequential", "grouped", "vertices", "snapshots", "windows"):
        torch.manual_seed(0)
        model = models.MPNNLSTM(3, 5, WINDOW, dropout=0.5).double()
        task = NodeRegression(model.out_features).double()
        strategy = SnapshotStrategy(sequence, model, task, Options(policy), seed=3)
        for epoch in (0, 1):
            batch = WindowBatch(epoch, 2, (1, 2, 3), WINDOW)
            found[policy, epoch] = gradients(strategy, batch)
    for (_policy, epoch), values in found.items():
        for a, b in zip(values, found["sequential", epoch], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    assert found["grouped", 0][0] != found["grouped", 1][0]


def test_standardise_ignores_inactive_nodes() -> None:
    sequence = SEQUENCES["growing"]()
    model, task = built("mpnn_lstm", sequence)
    strategy = SnapshotStrategy(sequence, model, task, Options())
    batch = WindowBatch(0, 0, (0,), WINDOW)
    everything = strategy.embed(batch, strategy.draws(batch)).h
    alive = np.flatnonzero(sequence.active_at(WINDOW - 1))
    # The same snapshots with the nodes that never appear in the window taken away.
    renumber = np.full(sequence.num_nodes, -1)
    renumber[alive] = np.arange(alive.size)
    cut = SnapshotSequence.from_lists(
        [renumber[sequence.snapshot(t).edge_index()] for t in range(WINDOW)], alive.size,
        x=sequence.x[:WINDOW, alive], y=sequence.y[:WINDOW, alive],
        active=sequence.active[:WINDOW, alive],
    )  # fmt: skip
    small = SnapshotStrategy(cut, model, task, Options()).embed(batch, strategy.draws(batch)).h
    torch.testing.assert_close(everything[alive], small, rtol=1e-10, atol=1e-12)


def test_windows_of_a_step_share_every_snapshot() -> None:
    sequence = SEQUENCES["overlap"]()
    model, task = built("mpnn_lstm", sequence)
    strategy = SnapshotStrategy(sequence, model, task, Options())
    batch = WindowBatch(0, 0, (0, 1, 2, 3, 4), WINDOW)
    strategy.accumulate(batch)
    assert strategy.counts.snapshots_aggregated == 2 * (5 + WINDOW - 1)  # two convolutions
    strategy.accumulate(batch)
    assert strategy.counts.snapshots_aggregated == 3 * (5 + WINDOW - 1)  # the first is kept
    one = SnapshotStrategy(sequence, model, task, Options("sequential"))
    one.accumulate(batch)
    assert one.counts.snapshots_aggregated == 2 * 5 * WINDOW
    assert strategy.counts.edges_read < strategy.counts.edges_aggregated


def test_truncated_back_propagation_carries_the_state_and_stops_gradients() -> None:
    sequence = SEQUENCES["overlap"]()
    for name in ("tgcn", "gconv_gru"):
        model, task = built(name, sequence)
        strategy = SnapshotStrategy(sequence, model, task, Options())
        state, losses = None, []
        for batch in segments(12, 5):
            loss, state = strategy.accumulate_truncated(batch, state)
            losses.append(loss * 40 * batch.length)
        # One pass over the whole sequence has the same losses but not the same gradients.
        truncated = [p.grad.clone() for p in strategy.parameters()]
        for p in strategy.parameters():
            p.grad = None
        (whole,) = segments(12, 12)
        loss, _ = strategy.accumulate_truncated(whole, None)
        assert loss * 40 * 12 == pytest.approx(sum(losses), rel=1e-10)
        gap = max((a / 3 - p.grad).abs().max() for a, p in
                  zip(truncated, strategy.parameters(), strict=True))  # fmt: skip
        assert gap > 1e-8
    model, task = built("mpnn_lstm", sequence)
    strategy = SnapshotStrategy(sequence, model, task, Options())
    with pytest.raises(InputError, match="skip"):
        strategy.accumulate_truncated(whole, None)


def labelled() -> SnapshotSequence:
    sequence = SEQUENCES["overlap"]()
    edges = [sequence.snapshot(t).edge_index() for t in range(12)]
    rng = np.random.default_rng(0)
    labels = [rng.integers(0, 2, e.shape[1]) for e in edges]
    return SnapshotSequence.from_lists(edges, 40, x=sequence.x, edge_labels=labels)


@pytest.mark.parametrize("kind", [EdgeClassification, LinkPrediction])
def test_edge_tasks_agree_under_every_policy(kind: type) -> None:
    sequence = labelled()
    batch = WindowBatch(0, 0, (1, 2, 3), WINDOW)
    found, metrics = {}, {}
    for policy in ("sequential", "grouped", "vertices", "snapshots", "windows"):
        torch.manual_seed(0)
        model = models.TGCN(3, 6).double()
        task = kind(6, 8).double()
        strategy = SnapshotStrategy(sequence, model, task, Options(policy), seed=1)
        found[policy] = gradients(strategy, batch)
        metrics[policy] = strategy.evaluate([batch])
    for policy, values in found.items():
        for a, b in zip(values, found["sequential"], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
        for name, value in metrics[policy].items():
            assert value == pytest.approx(metrics["sequential"][name], rel=1e-9)


def test_edge_classification_loss_is_cross_entropy_over_the_next_snapshots_edges() -> None:
    sequence = labelled()
    torch.manual_seed(0)
    model, batch = models.TGCN(3, 6).double(), WindowBatch(0, 0, (1, 2), WINDOW)
    task = EdgeClassification(6, 8).double()
    strategy = SnapshotStrategy(sequence, model, task, Options())
    h = strategy.embed(batch, strategy.draws(batch)).h
    total, number = 0.0, 0
    for b, start in enumerate(batch.starts):
        t = start + WINDOW
        for (u, v), label in zip(
            sequence.snapshot(t).edge_index().T, sequence.edge_labels[t], strict=True
        ):
            score = task.head(h[u, b][None], h[v, b][None])
            total += nn.functional.cross_entropy(score, torch.tensor([label])).item()
            number += 1
    assert strategy.accumulate(batch) == pytest.approx(total / number, rel=1e-9)


def test_ranking_metrics_by_hand() -> None:
    scores = np.array([0.9, 0.5, 0.1, 0.2, 0.3, 0.2])
    labels = np.array([1, 0, 0, 1, 0, 0])
    edge = np.array([0, 0, 0, 1, 1, 1])
    found = ranking_metrics(scores, labels, edge, np.zeros(6, int))
    assert found["mrr"] == pytest.approx((1 / 1 + 1 / 2.5) / 2)
    # by score: 0.9+, 0.5-, 0.3-, 0.2-, 0.2+, 0.1-
    assert found["map"] == pytest.approx((1 / 1 + 2 / 5) / 2)


def test_f1_by_hand() -> None:
    task = EdgeClassification(4)
    found = task.metrics(
        {"prediction": np.array([1, 1, 0, 0, 1]), "target": np.array([1, 0, 0, 1, 1])}
    )
    assert found["f1"] == pytest.approx(4 / 6)
    assert found["f1_macro"] == pytest.approx((4 / 6 + 2 / 4) / 2)
    assert found["f1_weighted"] == pytest.approx((3 * 4 / 6 + 2 * 2 / 4) / 5)


def test_training_learns() -> None:
    sequence = temporal.synthetic(60, 300, 20, change=0.1, features=3, seed=1)
    torch.manual_seed(0)
    model = models.TGCN(3, 16)
    task = NodeRegression(16)
    strategy = SnapshotStrategy(sequence, model, task, Options())
    optimizer = torch.optim.Adam(strategy.parameters(), 0.01)
    windows = Windows(20, WINDOW)
    split = windows.split(0.8)
    test = list(windows.batches(split["test"], 8, shuffle=False))
    before = strategy.evaluate(test)["mse"]
    for epoch in range(25):
        train_epoch(strategy, windows.batches(split["train"], 4, epoch=epoch), optimizer)
    after = strategy.evaluate(test)["mse"]
    assert after < 0.5 * before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: Options("best"), "policy: is 'best'"),
        (lambda s: Options(group=0), "group 0"),
        (lambda s: SnapshotStrategy(s, nn.Linear(1, 1), NodeRegression(1)), "has no 'temporal'"),
        (
            lambda s: SnapshotStrategy(
                s, models.GConvGRU(3), NodeRegression(32), Options("snapshots")
            ),
            "reads neighbours at every step",
        ),
        (
            lambda s: SnapshotStrategy(
                s, models.TGCN(3), NodeRegression(32), owner=np.zeros(3, np.int64)
            ),
            "owner: shape",
        ),
        (lambda s: models.TGCN(0), "in_features"),
        (lambda s: models.EvolveGCN(3, 3, "X"), "variant"),
        (lambda s: models.MPNNLSTM(3, dropout=1.0), "dropout"),
        (lambda s: LinkPrediction(3, negatives=0), "negatives"),
        (
            lambda s: SnapshotStrategy(s, models.TGCN(3), EdgeClassification(32)).accumulate(
                WindowBatch(0, 0, (0,), 2)
            ),
            "needs edge labels",
        ),
    ],
)
def test_bad_choices_are_named(call: Callable, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(SEQUENCES["overlap"]())
