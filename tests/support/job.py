"""A small training job that several tests run, and whose weights they compare."""

JOB = {
    "dataset.name": "sbm",
    "dataset.args": "{num_nodes: 2000, num_classes: 4, signal: 0.5}",
    "sampler.fanouts": "5,5",
    "model.args.hidden": "16",
    "model.args.dropout": "0.2",
    "train.batch_size": "128",
    "train.epochs": "3",
    "train.checkpoint_every": "3",
    "seed": "2",
}


def flags(**changes: str) -> list[str]:
    """The job as options of the command line; ``__`` in a name is a dot."""
    values = JOB | {name.replace("__", "."): value for name, value in changes.items()}
    return [f"--{name}={value}" for name, value in values.items()]
