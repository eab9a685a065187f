"""Which circuits there are: named ones, suites of them, files, and generated ones.

The named netlists (ISCAS85, ISCAS89, ITC99, EPFL and others) are those that the PyPI package
``circuitgraph`` carries as files. The package is found, not imported.
"""

import functools
import glob
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from gnn_dist.datasets.circuits.aiger import parse_aiger
from gnn_dist.datasets.circuits.bench import parse_bench
from gnn_dist.datasets.circuits.generate import KINDS, generate
from gnn_dist.datasets.circuits.netlist import Netlist
from gnn_dist.datasets.circuits.verilog import parse_verilog
from gnn_dist.errors import InputError

SUITES: dict[str, tuple[str, ...]] = {
    "iscas85": (
        *("c17", "c432", "c499", "c880", "c1355", "c1908"),
        *("c2670", "c3540", "c5315", "c6288", "c7552"),
    ),
    "iscas85_mapped": (
        *("c17g", "c432g", "c499g", "c880g", "c1355g", "c1908g"),
        *("c2670g", "c3540g", "c5315g", "c6288g", "c7552g"),
    ),
    "iscas89": ("s27", "s13207", "s38417", "s38584"),
    "itc99": ("b17_C", "b18_Cg", "b19_Cg", "b20_C", "b22_C"),
    "epfl_arithmetic": (
        *("adder", "bar", "div", "log2", "max"),
        *("multiplier", "sin", "sqrt", "square"),
    ),
    "epfl_control": (
        *("arbiter", "cavlc", "ctrl", "dec", "i2c"),
        *("int2float", "memctrl", "priority_ckt", "router", "voter"),
    ),
    "banyan": tuple(f"banyan_{n}" for n in (8, 16, 32, 64, 128, 256)),
}
SUITES["epfl"] = SUITES["epfl_arithmetic"] + SUITES["epfl_control"]

_TWINS = {"c1355": "c499", "mux_2": "mux", "mux_4": "mux", "b18": "b17", "b19": "b17", "b22": "b20"}
SUFFIXES = (".aig", ".aag", ".bench", ".v")


def family(name: str) -> str:
    """Circuits of one family compute the same or contain one another: ``c432`` and ``c432g``.

    A split by circuit keeps a family together, so that a test circuit is not seen in training.
    """
    stem = Path(name).stem if name.endswith(SUFFIXES) else name
    for ending in ("_assign", "_gates", "_Cg", "_C", "_unrolled_4"):
        stem = stem.removesuffix(ending)
    if stem[:1] == "c" and stem[1:-1].isdigit() and stem.endswith("g"):
        stem = stem[:-1]
    if stem.startswith("banyan_"):
        stem = "banyan"
    return _TWINS.get(stem, stem)


@functools.cache
def _library() -> dict[str, Path]:
    spec = importlib.util.find_spec("circuitgraph")
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            "circuits: the named netlists come with the package circuitgraph, which is not "
            "installed; pip install 'gnn-dist[circuits]', or give files instead"
        )
    folder = Path(spec.submodule_search_locations[0]) / "netlists"
    return {p.stem: p for p in sorted(folder.iterdir()) if p.suffix in SUFFIXES}


def available() -> list[str]:
    """The names of the netlists that are installed."""
    return sorted(_library())


def expand(names: Sequence[str]) -> list[str]:
    """Suites and globs become circuits; each is kept once, in the order given.

    A circuit is a name (``c432``), a file (``folder/x.aig``), or a generated one
    (``ripple_adder:64``). Raises ``InputError`` for a name that means none of these.
    """
    if not isinstance(names, list | tuple):
        raise InputError(f"circuits: must be a list of names, suites or files, not {names!r}")
    found: dict[str, None] = {}
    for name in names:
        if not isinstance(name, str) or not name:
            raise InputError(f"circuits: {name!r} is not a circuit; give names, suites or files")
        if name in SUITES:
            found.update(dict.fromkeys(SUITES[name]))
        elif ":" in name and name.partition(":")[0] in KINDS:
            found[name] = None
        elif name.endswith(SUFFIXES):
            files = sorted(glob.glob(name)) if glob.has_magic(name) else [name]
            if not files:
                raise InputError(f"circuits: no file matches {name!r}; check the path")
            found.update(dict.fromkeys(files))
        elif name in _library():
            found[name] = None
        else:
            raise InputError(
                f"circuits: there is no circuit named {name!r}; use a suite ({', '.join(SUITES)}), "
                f"a file ending with {', '.join(SUFFIXES)}, a generated circuit such as "
                f"{next(iter(KINDS))}:32, or one of {', '.join(available())}"
            )
    return list(found)


def read_circuit(circuit: str | Path) -> Netlist:
    """One circuit: an installed one by name, a generated one, or a file by its path.

    Raises ``InputError`` where there is none, and for a file that is damaged.
    """
    text = str(circuit)
    kind, colon, width = text.partition(":")
    if colon and kind in KINDS:
        if not width.isdigit() or len(width) > 6:
            raise InputError(f"circuits: {text!r} must end with a width, as in {kind}:32")
        return generate(kind, int(width))
    if text.endswith(SUFFIXES):
        return read_file(Path(text))
    [name] = expand([text]) if text not in SUITES else [""]
    if not name:
        raise InputError(f"circuits: {text!r} is a suite; name one of {', '.join(SUITES[text])}")
    return read_file(_library()[name])


def read_file(path: Path) -> Netlist:
    """The netlist in a file; the format is told by the suffix."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"circuits: cannot read {path}: {error.strerror}; check the path"
        ) from None
    if path.suffix in (".aig", ".aag"):
        return parse_aiger(data, path.stem)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"circuit {path.stem}: {path.name} is not text (byte {error.start}); is it damaged?"
        ) from None
    return (parse_bench if path.suffix == ".bench" else parse_verilog)(text, path.stem)
