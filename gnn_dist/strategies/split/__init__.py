"""Split parallelism: every vertex of a global batch is sampled, loaded and computed once.

After Polisetty et al., "GSplit: scaling graph neural network training on large graphs via
split-parallelism" (MLSys 2025), and Balin, LaSalle, Çatalyürek, "Cooperative minibatching in graph
neural networks" (2023). In data parallelism the ranks' shares of a global batch overlap; here the
owner of a vertex does its work for all, and rows travel between layers.
"""

from gnn_dist.strategies.split.strategy import SplitStrategy, checked_parts

__all__ = ["SplitStrategy", "checked_parts"]
