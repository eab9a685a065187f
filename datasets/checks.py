"""Checks of arguments that come from a configuration."""

from pathlib import Path

from gnn_dist.errors import InputError


def check_path(field: str, value: object) -> Path:
    """``value`` as a path; raise ``InputError`` unless it is text or a path."""
    if not isinstance(value, str | Path) or not str(value):
        raise InputError(f"{field}: must be a path, not {value!r}")
    return Path(value).expanduser()


def check_count(field: str, value: object, least: int, most: int | None) -> None:
    """Raise ``InputError`` unless ``value`` is a whole number in ``[least, most]``."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):  # type: ignore[operator]
        bound = f"at least {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"{field}: must be a whole number, {bound}, not {value!r}")


def check_number(field: str, value: object, least: float, most: float | None) -> None:
    """Raise ``InputError`` unless ``value`` is a number in ``[least, most]``."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    # The comparison is written so that NaN fails it.
    if not number or not value >= least or (most is not None and not value <= most):  # type: ignore[operator]
        bound = f"at least {least:g}" if most is None else f"from {least:g} to {most:g}"
        raise InputError(f"{field}: must be a number, {bound}, not {value!r}")
