"""Gate-level netlists: readers, generators, labels, and the data sets made of them."""

from gnn_dist.datasets.circuits.dataset import circuits, generated_circuits
from gnn_dist.datasets.circuits.netlist import Kind, Netlist
from gnn_dist.datasets.circuits.suite import read_circuit

__all__ = ["Kind", "Netlist", "circuits", "generated_circuits", "read_circuit"]
