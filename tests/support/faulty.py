"""Models that bring a fault upon their rank, once, at a chosen step."""

import os
import signal
import time
from pathlib import Path

import torch.distributed as dist
from torch import Tensor

from gnn_dist.batch import Block
from gnn_dist.features import FeatureRows
from gnn_dist.nn import SAGE


class Faulty(SAGE):
    """A GraphSAGE whose rank ``rank``, at its ``step``-th training step, meets ``fault``.

    ``flag`` is a file that is made when it happens, so that it happens once.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        num_layers: int,
        hidden: int,
        *,
        fault: str,
        flag: str,
        step: int,
        rank: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(in_features, out_features, num_layers, hidden, dropout=dropout)
        self.fault = fault
        self.flag = Path(flag)
        self.step = step
        self.rank = rank
        self.seen = 0

    def forward(self, x: Tensor | FeatureRows, blocks: list[Block]) -> Tensor:
        if self.training:
            self.seen += 1
            mine = dist.get_rank() if dist.is_initialized() else 0
            if self.seen == self.step and mine == self.rank and not self.flag.exists():
                self.flag.write_text(str(os.getpid()))
                self.meet()
        return super().forward(x, blocks)

    def meet(self) -> None:
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.fault == "hang":
            time.sleep(600)
        elif self.fault == "raise":
            raise ValueError("the model met an error of its own")
        elif self.fault == "memory":
            raise MemoryError
        elif self.fault == "cut":
            run = Path(str(self.flag).removesuffix("-flag"))
            for file in (run / "partition").rglob("part-*/*.npy"):
                os.truncate(file, 0)
        else:
            assert self.fault == "none"
