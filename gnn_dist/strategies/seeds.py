"""What strategies over sampled seeds share: one optimiser step, and exact predictions."""

import contextlib
import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from gnn_dist import rng
from gnn_dist.batch import BatchIndex, Block
from gnn_dist.cluster import World
from gnn_dist.config import Config
from gnn_dist.errors import InputError
from gnn_dist.loading import EpochPlan, LoadTimes
from gnn_dist.nn.tasks import Task
from gnn_dist.strategies.base import StepReport, model_dtype
from gnn_dist.strategies.gradients import GradientBuffer
from gnn_dist.strategies.inference import Inference, gather_shares
from gnn_dist.strategies.timing import busy


class SeedBatch(Protocol):
    """One rank's part of a global batch: ``MiniBatch`` and ``SplitBatch``."""

    index: BatchIndex
    seeds: Tensor
    node: Mapping[str, Tensor]
    global_seeds: int


B = TypeVar("B", bound=SeedBatch)
Delivered = TypeVar("Delivered", bound=SeedBatch, covariant=True)


class SeedLoader(Protocol[Delivered]):
    """Delivers this rank's parts of an epoch in order, ready to compute."""

    plan: EpochPlan

    def epoch(self, epoch: int, first: int, stop: int) -> Iterator[tuple[Delivered, LoadTimes]]: ...


class SeedStrategy(ABC, Generic[B]):
    """The loss of a global batch is the sum over the seeds of all ranks, divided by their number.

    ``choice`` and ``compared`` tell why it was chosen, where something chose (``auto``).

    Args:
        job: task, precision and seed are taken from it.
        model: of the job; it is moved to the device and precision of the job.
        task: gives the loss of outputs and targets.
        loader: this rank's parts of every batch.
        inference: exact predictions for evaluation.
        world: the ranks; its ``gradients`` and ``control`` are used by the calling thread alone.
    """

    choice: str | None = None
    compared: Sequence[Mapping[str, Any]] = ()

    def __init__(
        self,
        job: Config,
        model: nn.Module,
        task: Task,
        loader: SeedLoader[B],
        inference: Inference,
        world: World,
    ) -> None:
        self._device = world.device
        self._dtype = model_dtype(job)
        self.model = model.to(self._device, self._dtype)
        self._task = task
        self._target = job.task.target
        self._loader = loader
        self._inference = inference
        self._world = world
        self._seed = job.seed
        self._autocast = job.train.precision == "bfloat16"
        self._gradients = GradientBuffer(self.model.parameters())

    def num_batches(self) -> int:
        return self._loader.plan.num_batches

    def shares(
        self, epoch: int, first: int, stop: int
    ) -> Iterator[tuple[BatchIndex, tuple[B, LoadTimes]]]:
        for batch, times in self._loader.epoch(epoch, first, stop):
            yield batch.index, (batch, times)

    def backward(self, share: tuple[B, LoadTimes]) -> StepReport:
        batch, times = share
        start = time.perf_counter()
        self.model.train()
        self._gradients.zero()
        # Models may draw from torch's own generator.
        torch.manual_seed(
            rng.fold(self._seed, rng.Stream.MODEL, *batch.index, self._world.rank) >> 1
        )
        self._propagate(batch)
        computed = time.perf_counter()
        self._gradients.sum_over(self._world.gradients)
        return StepReport(
            loss=float(self._gradients.scalars[0]),
            seeds=batch.global_seeds,
            seconds={
                "sample": times.sample,
                "fetch": times.fetch,
                "wait": times.wait,
                "wait_features": times.wait_features,
                "compute": computed - start,
                "synchronise": time.perf_counter() - computed,
            },
        )

    def try_out(self, batch: B) -> float:
        """Seconds that the model takes for a batch, forward and backward, with nobody to wait for;
        nothing that lasts is changed."""
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        self.model.train()
        run = functools.partial(self._propagate, batch)
        _, took = busy(run, self._device, torch.get_num_threads())
        self._gradients.zero()
        for buffer, before in buffers:
            buffer.copy_(before)
        return took

    def gradient_bytes(self) -> int:
        """Bytes that a rank sends to sum the gradients of a step over a ring: 2 (n - 1) / n of
        them (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009)."""
        size = self._world.size
        return 2 * (size - 1) * self._gradients.flat.nbytes // size

    @abstractmethod
    def _propagate(self, batch: B) -> None:
        """Add this rank's part of the gradient to every parameter."""

    def _loss(self, output: Tensor, batch: B) -> Tensor:
        """This rank's part of the loss, noted for the report; the batch has seeds here."""
        target = batch.node[self._target].to(self._device, non_blocking=True)
        output = output.float() if self._autocast else output
        loss = self._task.loss_sum(output, target) / batch.global_seeds
        if not loss.requires_grad:
            raise InputError(
                "model: its output has no gradient; compute it from the model's parameters, "
                "without detach() or no_grad()"
            )
        self._gradients.scalars[0] = loss.detach()
        return loss

    def _precision(self) -> Any:
        """The context that the model runs in."""
        if self._autocast:
            return torch.autocast(self._device.type, dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def _here(self, block: Block) -> Block:
        """``block`` on the model's device."""
        on_cpu = self._device.type == "cpu"
        return block if on_cpu else block.to(self._device, non_blocking=True)

    def predict(self, split: str) -> tuple[Tensor, Tensor, Tensor] | None:
        self.model.eval()
        share = self._inference.predict(self.model, split, self._target)
        return gather_shares(share, self._world.control)
