"""Distributed mini-batch training of graph neural networks."""

__version__ = "0.1.0"
