"""The command line: ``gnn-dist COMMAND``; a mistake of the user is one sentence and exit code 2."""

import argparse
import contextlib
import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import shtab
import yaml

from gnn_dist import __version__, config
from gnn_dist.errors import InputError, WorkerError

JOBS = ("train", "plan", "partition")
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_CANNOT_USE = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP)
_DOTTED = re.compile(r"--\w+(\.\w+)+")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 (the run failed), 2 (bad input), 130 (Ctrl-C) or 143
    (SIGTERM)."""
    command = "gnn-dist"
    try:
        with _terminable():
            arguments = _parse(sys.argv[1:] if argv is None else argv)
            command = f"gnn-dist {arguments.command}"
            COMMANDS[arguments.command](arguments)
    except InputError as error:
        print(f"{command}: {error}", file=sys.stderr)
        return 2
    except (WorkerError, FloatingPointError) as error:  # the latter: the loss is not finite
        print(f"{command}: {error}", file=sys.stderr)
        return 1
    except (MemoryError, RuntimeError) as error:
        lacking = _out_of_memory(error)
        if lacking is None:
            raise
        print(f"{command}: {lacking}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output went away, as in `gnn-dist ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno in _CANNOT_USE:
            print(f"{command}: {error}; correct that path or its rights", file=sys.stderr)
            return 2
        if error.errno not in _CANNOT_WRITE:
            raise
        print(
            f"{command}: {error}; free space there and go on with --resume, or "
            "choose another --output",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt as interrupt:
        print("\nstopped; the last checkpoint is kept", file=sys.stderr)
        return 143 if isinstance(interrupt, _Terminated) else 130
    return 0


class _Terminated(KeyboardInterrupt):
    """SIGTERM came: as Ctrl-C, it ends what runs and lets it clean up."""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    def interrupt(number: int, frame: object) -> None:
        raise _Terminated

    try:
        previous = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _out_of_memory(error: BaseException) -> Exception | None:
    from gnn_dist.cluster.memory import out_of_memory  # not before it is needed: it imports torch

    return out_of_memory(error)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command, with ``overrides``: dotted key of the configuration → value."""
    parser = build_parser()
    plain, dotted = _take_dotted(argv, parser)
    arguments = parser.parse_args(plain)
    if dotted and arguments.command not in JOBS:
        parser.error(f"{arguments.command} takes no configuration; remove --{next(iter(dotted))}")
    arguments.overrides = {**_given_flags(arguments), **dotted}
    return arguments


def build_parser() -> argparse.ArgumentParser:
    """The whole command line, every key of the configuration included."""
    parser = argparse.ArgumentParser(
        prog="gnn-dist",
        description="Distributed mini-batch training of graph neural networks.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gnn-dist {__version__}")
    shtab.add_argument_to(parser, "--print-completion", help="print a shell's completion script")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    train = _job(commands, "train", "partition, train, evaluate and report")
    train.add_argument("--resume", type=Path, metavar="RUN", help="go on with the run in a folder")
    train.add_argument(
        "--dry-run", action="store_true", help="resolve, validate and estimate; start nothing"
    )
    _job(commands, "plan", "what a job's strategy foresees: candidates, and the one chosen")
    _job(commands, "partition", "partition a data set and write it")
    verify = commands.choices["partition"]
    verify.add_argument("--verify", type=Path, metavar="DIR", help="check an existing partition")

    evaluate = commands.add_parser(
        "evaluate", help="exact inference and metrics of a trained run", allow_abbrev=False
    )
    evaluate.add_argument("run", type=Path, help="the run's folder")
    evaluate.add_argument("--split", default="test", help="which nodes (default: test)")
    evaluate.add_argument("--checkpoint", type=Path, help="a checkpoint (default: the run's best)")

    report = commands.add_parser(
        "report", help="write report.html of a run again", allow_abbrev=False
    )
    report.add_argument("run", type=Path, help="the run's folder")

    datasets = commands.add_parser("datasets", help="list the data sets", allow_abbrev=False)
    datasets.add_argument("name", nargs="?", help="show one data set and its arguments")
    commands.add_parser("doctor", help="tell what is installed and what works")
    return parser


def _job(commands: Any, name: str, help_: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=help_,
        allow_abbrev=False,
        usage=f"gnn-dist {name} [CONFIG] [options] [--SECTION.KEY VALUE ...]",
        epilog="Arguments of a part are given as --model.args.hidden 64.",
    )
    parser.add_argument("config", type=Path, nargs="?", help="a YAML file, as in configs/")
    parser.add_argument(
        "--print-config", action="store_true", help="print the resolved configuration and end"
    )
    parser.add_argument(
        "--download",
        dest="config:dataset.args.download",
        action="store_const",
        const=True,
        default=argparse.SUPPRESS,
        help="let the data set fetch what is missing (as --dataset.args.download true)",
    )
    group = parser.add_argument_group("configuration (every key of the YAML file)")
    for key, info in config.flags():
        group.add_argument(
            f"--{key}",
            dest=f"config:{key}",
            metavar=key.rsplit(".", 1)[-1].upper(),
            default=argparse.SUPPRESS,
            type=_yaml_value,
            help=config.describe(info).replace("%", "%%"),
        )
    return parser


def _yaml_value(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):  # the latter: a day or a number that cannot be
        return text


def _given_flags(arguments: argparse.Namespace) -> dict[str, Any]:
    prefix = "config:"
    return {k.removeprefix(prefix): v for k, v in vars(arguments).items() if k.startswith(prefix)}


def _take_dotted(
    argv: Sequence[str], parser: argparse.ArgumentParser
) -> tuple[list[str], dict[str, Any]]:
    """Take ``--section.key VALUE`` and ``--section.key=VALUE`` out of the arguments.

    Taken before argparse sees them: it cannot know the arguments of a part
    (``--model.args.hidden``), and it would read ``-1,-1`` as a flag. The configuration names a
    key that does not exist better than argparse does.
    """
    plain: list[str] = []
    found: dict[str, Any] = {}
    tokens = list(argv)
    while tokens:
        token = tokens.pop(0)
        flag, equals, value = token.partition("=")
        if not _DOTTED.fullmatch(flag):
            plain.append(token)
            continue
        if not equals:
            if not tokens:
                parser.error(f"{flag}: expected a value")
            value = tokens.pop(0)
        found[flag[2:]] = _yaml_value(value)
    return plain, found


def _train(arguments: argparse.Namespace) -> None:
    if arguments.resume is not None:
        if arguments.config is not None:
            raise InputError(
                f"train: both a config ({arguments.config}) and --resume {arguments.resume} are "
                "given; a resumed run has its own config.yaml: leave one of them out"
            )
        file = arguments.resume / "config.yaml"
        if not file.is_file():
            raise InputError(
                f"--resume {arguments.resume}: holds no config.yaml; give the folder of a run, "
                "such as runs/quickstart"
            )
        if "output" in arguments.overrides:
            raise InputError(
                f"train: --resume {arguments.resume} goes on in that folder; leave --output out"
            )
        arguments.overrides["output"] = str(arguments.resume)
        job = config.load(file, arguments.overrides)
    else:
        job = _config(arguments)
    if arguments.print_config:
        print(job.dump(), end="")
        return
    from gnn_dist.training import jobs  # imports torch, Ray and numba: not for a mere printout

    if arguments.dry_run:
        print(jobs.dry_run(job))
    else:
        jobs.train(job, resume=arguments.resume is not None)


def _plan(arguments: argparse.Namespace) -> None:
    job = _config(arguments)
    if arguments.print_config:
        print(job.dump(), end="")
        return
    from gnn_dist.training import jobs

    print(jobs.plan(job))


def _partition(arguments: argparse.Namespace) -> None:
    from gnn_dist.training import jobs

    if arguments.verify is not None:
        print(jobs.verify(arguments.verify))
        return
    job = _config(arguments)
    if arguments.print_config:
        print(job.dump(), end="")
    else:
        print(jobs.partition_table(job))


def _config(arguments: argparse.Namespace) -> config.Config:
    if arguments.config is None and not arguments.overrides:
        raise InputError("config: is missing; give a YAML file, such as configs/quickstart.yaml")
    return config.load(arguments.config, arguments.overrides)


def _evaluate(arguments: argparse.Namespace) -> None:
    from gnn_dist.training import jobs

    jobs.evaluate(arguments.run, split=arguments.split, checkpoint=arguments.checkpoint)


def _report(arguments: argparse.Namespace) -> None:
    from gnn_dist.training import report

    print(report.write(arguments.run))


def _datasets(arguments: argparse.Namespace) -> None:
    from gnn_dist import datasets

    listings = datasets.list_builtin()
    if arguments.name is None:
        width = max(len(item.name) for item in listings)
        for item in listings:
            print(f"{item.name.ljust(width)}  {item.summary}")
        print("\ngnn-dist datasets NAME lists the arguments of one.")
        return
    chosen = [item for item in listings if item.name == arguments.name]
    if not chosen:
        names = ", ".join(item.name for item in listings)
        raise InputError(f"there is no data set {arguments.name!r}; there are {names}")
    print(f"{chosen[0].name}: {chosen[0].summary}")
    for argument in chosen[0].arguments:
        print(f"  {argument.name} = {argument.default}\n      {argument.help}")


def _doctor(arguments: argparse.Namespace) -> None:
    from gnn_dist.cluster import doctor

    print(doctor.describe())


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "train": _train,
    "plan": _plan,
    "partition": _partition,
    "evaluate": _evaluate,
    "report": _report,
    "datasets": _datasets,
    "doctor": _doctor,
}

if __name__ == "__main__":
    raise SystemExit(main())
