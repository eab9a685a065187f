"""The gradient of a global batch does not depend on how many ranks compute it."""

import numpy as np
import pytest
import torch
from support.graphs import random_graph
from support.ranks import run_ranks

from gnn_dist import config, storage, strategies
from gnn_dist.batch import MiniBatch
from gnn_dist.cluster import World

MODELS = {
    "sage": {"hidden": 8, "dropout": 0.3},
    "gcn": {"hidden": 8, "gcn_norm": "right"},
    "gat": {"hidden": 8, "heads": 2},
    "gin": {"hidden": 8},
}


def job(model: str, batch_size: int = 17) -> config.Config:
    return config.load(
        None,
        {
            "dataset.name": "unused",
            "sampler.fanouts": [4, 3],
            "model.name": model,
            "model.args": MODELS[model],
            "train.precision": "float64",
            "train.batch_size": batch_size,
            "cluster.placement": "per-rank",
            "seed": 5,
        },
    )


def cut(num_parts: int) -> storage.PartitionedGraph:
    whole = random_graph(150, 1200, seed=2)
    assignment = np.random.default_rng(num_parts).integers(0, num_parts, 150).astype(np.int32)
    return storage.assemble(whole, assignment, num_parts)


def gradients(world: World, num_parts: int, batch_size: int) -> dict[str, list[tuple]]:
    """Model → (loss, all gradients as one vector) of every batch of an epoch."""
    found = {}
    for name in MODELS:
        strategy = strategies.build(job(name, batch_size), world, cut(num_parts))
        steps = []
        for _, share in strategy.shares(0, 0, strategy.num_batches()):
            report = strategy.backward(share)
            flat = torch.cat([p.grad.reshape(-1) for p in strategy.model.parameters()])
            steps.append((report.loss, flat.clone()))
        found[name] = steps
    return found


@pytest.fixture(scope="module")
def one_process():
    return {size: gradients(World.local(), 1, size) for size in (17, 3)}


@pytest.mark.parametrize("batch_size", [17, 3])
@pytest.mark.parametrize("size", [2, 4])
def test_gradients_equal_those_of_one_process(size, batch_size, one_process):
    # With 3 seeds a batch on 4 ranks, a rank has no seed in every step.
    for rank_found in run_ranks(gradients, size, (size, batch_size), timeout=120):
        for model, steps in one_process[batch_size].items():
            assert len(steps) == len(rank_found[model]) > 3
            for (loss, flat), (loss_found, flat_found) in zip(
                steps, rank_found[model], strict=True
            ):
                assert loss_found == pytest.approx(loss, rel=1e-10)
                scale = float(flat.abs().max())
                assert torch.allclose(flat_found, flat, rtol=1e-10, atol=1e-10 * scale), model


def test_the_gradient_is_that_of_plain_autograd_over_the_same_blocks():
    strategy = strategies.build(job("sage"), World.local(), cut(1))
    _, share = next(strategy.shares(0, 0, 1))
    batch: MiniBatch = share[0]
    report = strategy.backward(share)
    found = {n: p.grad.clone() for n, p in strategy.model.named_parameters()}

    torch.manual_seed(0)
    model = strategies.build(job("sage"), World.local(), cut(1)).model
    x = (batch.x.materialise() if hasattr(batch.x, "materialise") else batch.x).double()
    model.train()
    output = model(x, batch.blocks)
    loss = torch.nn.functional.cross_entropy(output, batch.node["y"])
    loss.backward()
    assert report.loss == pytest.approx(float(loss.detach()), rel=1e-12)
    for name, parameter in model.named_parameters():
        assert torch.allclose(found[name], parameter.grad, rtol=1e-10, atol=1e-13), name
