"""The errors that are meant for people."""


class InputError(ValueError):
    """What the user gave cannot be used.

    The message names the field, the value given and the remedy. The command line prints it
    without a traceback and ends with exit code 2.
    """


class WorkerError(RuntimeError):
    """A rank died, stopped answering or ran out of memory; the message names it."""


class OutOfMemory(WorkerError):
    """A rank asked for memory and got none; it would ask for as much again."""
