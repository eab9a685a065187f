"""Data parallelism: seeds dealt to ranks, each computes its own blocks, gradients summed."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gnn_dist import rng
from gnn_dist.batch import BatchIndex, MiniBatch
from gnn_dist.cluster import Exchange
from gnn_dist.features import FeatureStore
from gnn_dist.loading import Loader, LoadTimes
from gnn_dist.nn.tasks import Task
from gnn_dist.strategies.base import StepReport
from gnn_dist.strategies.gradients import GradientBuffer
from gnn_dist.strategies.inference import Inference

Share = tuple[MiniBatch, LoadTimes]


class DataStrategy:
    """The loss of a global batch is the sum over the seeds of all ranks, divided by their number.

    A rank without seeds takes part with weight 0. The gradients equal those of one process to
    reassociation of the sums.

    Args:
        model: takes ``(x, blocks)``.
        task: gives the loss of outputs and targets.
        target: the node tensor to predict.
        loader: this rank's shares.
        features: the store that the loader reads, for its counters.
        inference: exact predictions for evaluation.
        exchange: sums gradients; used by the calling thread alone.
        device: where the model runs.
        seed: seeds torch's own generator at every step, for models that draw from it.
        autocast: run the model in bfloat16 under autocast.
    """

    name = "data"

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        target: str,
        loader: Loader,
        features: FeatureStore,
        inference: Inference,
        exchange: Exchange,
        device: torch.device,
        seed: int,
        autocast: bool = False,
    ) -> None:
        self.model = model
        self._task = task
        self._target = target
        self._loader = loader
        self._features = features
        self._inference = inference
        self._exchange = exchange
        self._device = device
        self._seed = seed
        self._autocast = autocast
        self._gradients = GradientBuffer(model.parameters())

    def num_batches(self) -> int:
        return self._loader.plan.num_batches

    def shares(self, epoch: int, first: int, stop: int) -> Iterator[tuple[BatchIndex, Share]]:
        for batch, times in self._loader.epoch(epoch, first, stop):
            yield batch.index, (batch, times)

    def backward(self, share: Share) -> StepReport:
        batch, times = share
        start = time.perf_counter()
        self.model.train()
        self._gradients.zero()
        torch.manual_seed(
            rng.fold(self._seed, rng.Stream.MODEL, *batch.index, self._exchange.rank) >> 1
        )
        if batch.seeds.numel():
            loss_sum = self._loss_sum(batch) / batch.global_seeds
            loss_sum.backward()
            self._gradients.scalars[0] = loss_sum.detach()
        computed = time.perf_counter()
        self._gradients.sum_over(self._exchange)
        return StepReport(
            loss=float(self._gradients.scalars[0]),
            seeds=batch.global_seeds,
            seconds={
                "sample": times.sample,
                "fetch": times.fetch,
                "wait": times.wait,
                "compute": computed - start,
                "synchronise": time.perf_counter() - computed,
            },
        )

    def _loss_sum(self, batch: MiniBatch) -> Tensor:
        x = None if batch.x is None else batch.x.to(self._device)
        blocks = batch.blocks
        target = batch.node[self._target]
        if self._device.type != "cpu":
            blocks = [block.to(self._device, non_blocking=True) for block in blocks]
            target = target.to(self._device, non_blocking=True)
        precision: Any = contextlib.nullcontext()
        if self._autocast:
            precision = torch.autocast(self._device.type, dtype=torch.bfloat16)
        with precision:
            output = self.model(x, blocks)
        return self._task.loss_sum(output.float() if self._autocast else output, target)

    def predict(self, split: str) -> tuple[Tensor, Tensor, Tensor] | None:
        self.model.eval()
        share = self._inference.predict(self.model, split, self._target)
        gathered = [self._exchange.all_gather(tensor) for tensor in share]
        if self._exchange.rank != 0:
            return None
        ids, outputs, targets = (torch.cat(parts) for parts in gathered)
        order = torch.argsort(ids)
        return ids[order], outputs[order], targets[order]

    def communication(self) -> dict[str, Any]:
        counts = self._exchange.all_gather_object(self._features.total.as_dict())
        return {
            "features": _sum(counts),
            "gradient_bytes": sum(
                self._exchange.all_gather_object(self._exchange.traffic.bytes_sent)
            ),
        }


def _sum(values: list[Any]) -> Any:
    """Sum nested dictionaries of numbers key by key."""
    if isinstance(values[0], dict):
        return {key: _sum([value[key] for value in values]) for key in values[0]}
    return sum(values)
