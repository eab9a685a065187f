"""Who is where: each rank publishes its progress, so that a failure can name the missing rank.

A light thread on each rank writes a small record to a store every beat and reads those of the
others. The thread goes on while the main thread computes or waits, so a beat says that the process
lives, and the number of the last collective entered says how far it came. When a collective fails,
nothing is asked of the store: the thread has already what is known.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gnn_dist.cluster.memory import peak_mib
from gnn_dist.errors import WorkerError

_STALE_BEATS = 3.0
_LAST_WORDS = 5.0
"""Seconds that a store may take for what a rank says as it ends, on a machine that is busy."""


@dataclass
class _Seen:
    """What this rank knows of another."""

    record: dict[str, Any] = field(default_factory=dict)
    changed: float = field(default_factory=time.monotonic)
    gone: float | None = None
    """When its process was first found missing."""


class Watch:
    """Progress of all ranks of a world.

    ``limit`` is the time limit of a collective in seconds (it is enforced by the process groups;
    here it only sets the pace). ``store`` is a connection of this object's own.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, host: str, limit: float) -> None:
        self.rank = rank
        self.size = size
        self.limit = limit
        self.beat = min(1.0, max(0.05, limit / 10))
        self._store = store
        self._record: dict[str, Any] = {
            "beat": 0,
            "host": host,
            "pid": os.getpid(),
            "machine": machine(),
            "state": "running",
            "why": "",
            "missing": [],
            "at": {},
            "done": {},
            "peak_mib": 0,
        }
        self._lock = threading.Condition()
        self._wake = threading.Event()
        self._stop = False
        self._last_contact = time.monotonic()
        self._last_try = time.monotonic()
        self._seen = {r: _Seen() for r in range(size) if r != rank}
        self._publish()
        self._thread = threading.Thread(target=self._run, name="gnn-dist-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch; call it when every rank has made its ``Watch``."""
        self._thread.start()

    @contextmanager
    def collective(self, name: str, operation: str, members: Sequence[int]) -> Iterator[None]:
        """Note that this rank is in a collective of ``members``, and explain its failure."""
        with self._lock:
            at = self._record["at"].setdefault(name, {"entered": 0, "left": 0, "operation": ""})
            at["entered"] += 1
            at["operation"] = operation
            number = at["entered"]
        start = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
                raise  # this rank's own trouble
            raise self._explain(
                error, name, operation, number, members, time.monotonic() - start
            ) from error
        with self._lock:
            at["left"] = number

    def announce(self, key: str, value: Any) -> None:
        """Tell all ranks something small (it travels with every beat)."""
        with self._lock:
            self._record["done"][key] = value
        self._wake.set()

    def wait_for(self, key: str, rank: int) -> Any:
        """What ``rank`` announces under ``key``: waits as long as that rank lives.

        Not bounded by the time limit, for work that may be long. Raises ``WorkerError`` when the
        rank dies, fails or stops answering.
        """
        if rank == self.rank:
            return self._record["done"][key]
        with self._lock:
            while True:
                record = self._seen[rank].record
                if key in record.get("done", {}):
                    return record["done"][key]
                trouble = self._trouble(rank)
                if trouble is not None:
                    raise WorkerError(f"{self._name(rank)} {trouble}, while others waited: {key}")
                self._lock.wait(self.beat)

    def peaks_mib(self) -> dict[int, int]:
        """The peak resident memory of each rank that is known, in MiB."""
        with self._lock:
            out = {r: s.record.get("peak_mib", 0) for r, s in self._seen.items()}
        out[self.rank] = peak_mib()
        return out

    def tell_failure(self, error: BaseException) -> None:
        """Publish that this rank ends with ``error``, unless its failure is already known."""
        with self._lock:
            if self._record["state"] == "running":
                self._record["state"] = "failed"
                self._record["why"] = f"{type(error).__name__}: {error}"[:2000]
        self._wake.set()

    def close(self) -> None:
        """Say that this rank ends, and stop watching.

        Rank 0, which holds the store, waits a little for the others to have said so too, so that
        they can still learn who failed.
        """
        with self._lock:
            if self._stop:
                return
            if self._record["state"] == "running":
                self._record["state"] = "closed"
        self._wake.set()
        if self.rank == 0:
            end = time.monotonic() + min(5.0, 5 * self.beat)
            with self._lock:
                while time.monotonic() < end and any(
                    seen.record.get("state", "running") == "running" and self._trouble(r) is None
                    for r, seen in self._seen.items()
                ):
                    self._lock.wait(self.beat / 2)
        with self._lock:
            self._stop = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=max(2 * self.beat, _LAST_WORDS))

    def _run(self) -> None:
        keys = [f"watch/{r}" for r in self._seen]
        while True:
            started = time.monotonic()
            last = self._stop  # read before publishing, so that the last words are published
            try:
                self._publish()
                answers = self._store.multi_get(keys) if keys else []
            except RuntimeError:  # the store is gone or silent: its age says so
                answers = []
            now = time.monotonic()
            with self._lock:
                self._last_try = started
                if answers or not keys:
                    self._last_contact = now
                for rank, answer in zip(self._seen, answers, strict=False):
                    record = json.loads(answer)
                    if record != self._seen[rank].record:
                        self._seen[rank] = _Seen(record, now, self._seen[rank].gone)
                self._lock.notify_all()
            if last:
                return
            self._wake.wait(self.beat)
            self._wake.clear()

    def _publish(self) -> None:
        with self._lock:
            self._record["beat"] += 1
            self._record["peak_mib"] = peak_mib()
            text = json.dumps(self._record)
        self._store.set(f"watch/{self.rank}", text)

    def _explain(
        self,
        error: RuntimeError,
        name: str,
        operation: str,
        number: int,
        members: Sequence[int],
        waited: float,
    ) -> WorkerError:
        """Name the ranks because of which collective ``number`` of ``name`` failed."""
        others = [r for r in members if r != self.rank]
        # A broken connection is noticed at once, a silent process only after some beats.
        end = time.monotonic() + (_STALE_BEATS + 1.5) * self.beat
        while True:
            with self._lock:
                found = self._culprits(others)
                unheard = any(self._unheard(r) for r in others)
            if found or (time.monotonic() > end and not unheard):
                break
            time.sleep(self.beat / 4)
        if not found:
            with self._lock:
                found = {r: t for r in others if (t := self._behind(r, name, number))}
        where = f"{name}: {operation} number {number} on rank {self.rank} failed"
        where += f" after {waited:.1f} s (time limit {self.limit:g} s)"
        if found:
            text = "; ".join(f"{self._name(r)} {t}" for r, t in sorted(found.items()))
            message = f"{text} ({where})"
        else:
            with self._lock:
                gave_up = [
                    r for r in others if self.rank in self._seen[r].record.get("missing", [])
                ]
            if gave_up:
                text = f"{self._name(gave_up[0])} gave up: {self._seen[gave_up[0]].record['why']}"
                message = f"{text} ({where})"
            else:
                message = (
                    f"{where}: {error}; all ranks are alive and in step, so the network between "
                    "them is the suspect"
                )
        with self._lock:
            self._record["state"] = "failed"
            self._record["why"] = message[:2000]
            self._record["missing"] = sorted(found)
        self._wake.set()
        return WorkerError(message)

    def _culprits(self, ranks: Sequence[int]) -> dict[int, str]:
        """Ranks that are dead, silent, or failed by themselves, with what is the matter."""
        found = {r: t for r in ranks if (t := self._trouble(r))}
        for record in [self._seen[r].record for r in ranks]:
            for rank in record.get("missing", []):
                if rank != self.rank and rank not in found:
                    found[rank] = self._trouble(rank) or "is missing, as another rank found"
        first_hand = {
            r: t
            for r, t in found.items()
            if not (self._seen[r].record.get("state") == "failed" and self._blames(r))
        }
        return first_hand

    def _blames(self, rank: int) -> bool:
        return bool(self._seen[rank].record.get("missing"))

    def _trouble(self, rank: int) -> str | None:
        seen = self._seen[rank]
        record = seen.record
        state = record.get("state", "running")
        if state == "failed":
            return f"failed: {record['why']}"
        if state == "closed":
            return "has already ended"
        process = _process_state(record, self._record["machine"])
        peak = f"; its peak was {record['peak_mib']} MiB" if record.get("peak_mib") else ""
        now = time.monotonic()
        stale = _STALE_BEATS * self.beat
        if process == "gone":
            if seen.gone is None:
                seen.gone = now
                self._wake.set()
            if self._unheard(rank):
                return None
            return f"was killed, probably out of memory{peak}"
        if process == "stopped":
            return "does not answer: its process is stopped"
        if now - self._last_contact > stale:
            # The store lives in rank 0: nothing is known of the others.
            if rank == 0:
                return f"does not answer: silent for {now - self._last_contact:.1f} s{peak}"
            return None
        if now - seen.changed > stale:
            return f"does not answer: silent for {now - seen.changed:.1f} s{peak}"
        return None

    def _unheard(self, rank: int) -> bool:
        """Whether a process that is gone may have told why with its last breath: its record is
        then read once more."""
        gone = self._seen[rank].gone
        if gone is None or self._last_try >= gone:
            return False
        return time.monotonic() - gone < max(_STALE_BEATS * self.beat, _LAST_WORDS)

    def _behind(self, rank: int, name: str, number: int) -> str | None:
        at = self._seen[rank].record.get("at", {})
        entered = at.get(name, {}).get("entered", 0)
        if entered >= number:
            return None
        inside = [
            f"in {other} {a['operation']} number {a['entered']}"
            for other, a in at.items()
            if a["entered"] > a["left"]
        ]
        doing = f"; it is {inside[0]}" if inside else "; it is in no collective"
        return f"is alive but did not come: it has entered {entered} of {name}{doing}"

    def _name(self, rank: int) -> str:
        record = self._seen[rank].record
        if not record:
            return f"rank {rank}"
        return f"rank {rank} (host {record['host']}, process {record['pid']})"


def killed_by(exit_code: int | None) -> str:
    """What a process's exit code says, in words: ``-9`` is ``SIGKILL``."""
    if exit_code is None:
        return "still running"
    if exit_code < 0:
        return signal.Signals(-exit_code).name
    return f"exit code {exit_code}"


def machine() -> str:
    """Names the machine and its process number space, so that a process number can be looked up."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _process_state(record: dict[str, Any], machine: str) -> str:
    """``gone``, ``stopped`` or ``unknown``; only a process of this ``machine`` can be looked up."""
    if not record or not machine or record["machine"] != machine:
        return "unknown"
    try:
        stat = Path(f"/proc/{record['pid']}/stat").read_text()
    except FileNotFoundError:
        return "gone"
    except OSError:
        return "unknown"
    letter = stat.rpartition(")")[2].split()[0]
    return {"Z": "gone", "X": "gone", "T": "stopped", "t": "stopped"}.get(letter, "unknown")


def connect_store(host: str, port: int, *, is_server: bool, limit: float) -> dist.TCPStore:
    """A connection of its own to the store that rank 0 serves."""
    return dist.TCPStore(
        host, port, None, is_server, timedelta(seconds=limit), wait_for_workers=False
    )
