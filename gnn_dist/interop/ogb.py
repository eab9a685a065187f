"""OGB: importing it without its look at the network, and its Evaluator as metrics.

The official numbers of a leaderboard are those of the Evaluator; ``ogb_accuracy`` and
``ogb_rocauc`` give it the predictions of a whole split.
"""

import importlib.util
import sys
from types import ModuleType

import numpy as np
from torch import Tensor

from gnn_dist.errors import InputError

_REMEDY = "install it with pip install 'gnn-dist[ogb]'"


def import_ogb() -> ModuleType:
    """The module ``ogb.nodeproppred``; ``InputError`` with the remedy where it cannot be imported.

    Two packages are hidden from OGB while it is imported: ``outdated``, with which it would start
    a thread that asks a package index for a newer OGB, and a DGL that is not imported yet, which
    would write its choice of a backend to the home folder.
    """
    if importlib.util.find_spec("ogb") is None:
        raise InputError(f"ogb: is not installed; {_REMEDY}")
    hidden = [name for name in ("outdated", "dgl") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        import ogb.nodeproppred
    except Exception as error:
        raise InputError(f"ogb: cannot be imported: {error}; {_REMEDY}") from error
    finally:
        for name in hidden:
            del sys.modules[name]
    return ogb.nodeproppred


def ogb_accuracy(output: Tensor, target: Tensor) -> float:
    """Accuracy by OGB's Evaluator for ogbn-arxiv, -products and -papers100M."""
    if target.ndim != 1 or target.is_floating_point() or output.ndim != 2:
        raise InputError(
            "task.metrics: ogb_accuracy is for classes [N]; use ogb_rocauc for several labels a "
            "node"
        )
    # The three data sets have the same rule; the name only chooses it.
    evaluator = import_ogb().Evaluator("ogbn-arxiv")
    predicted = output.argmax(-1, keepdim=True)
    return float(evaluator.eval({"y_true": target[:, None], "y_pred": predicted})["acc"])


def ogb_rocauc(output: Tensor, target: Tensor) -> float:
    """Mean area under the ROC curve by OGB's Evaluator for ogbn-proteins; NaN where no task has
    both labels."""
    evaluator = import_ogb().Evaluator("ogbn-proteins")
    if target.ndim != 2 or target.shape[1] != evaluator.num_tasks:
        raise InputError(
            f"task.metrics: ogb_rocauc is for the {evaluator.num_tasks} labels of ogbn-proteins, "
            f"the target has shape {list(target.shape)}; use roc_auc"
        )
    labels = target.numpy()
    if not (np.any(labels == 1, axis=0) & np.any(labels == 0, axis=0)).any():
        return float("nan")
    return float(evaluator.eval({"y_true": labels, "y_pred": output.float().numpy()})["rocauc"])
