"""Leases that workers take from each other by conditional writes: a small object a lease, in a folder or a bucket.

A lease is had by whoever's token is in its object. Who does not renew it loses it to the first that saw it unchanged
for long enough by a clock of its own, so that the machines' clocks need not agree.

On gs:// every write and deletion is conditional at the server, and exact. On s3:// writes are (If-None-Match and
If-Match, which is tried at opening), but tensorstore deletes by HEAD, then DELETE: a release at the very moment of a
theft may take the thief's lease away. In a folder both are exact wherever file locks hold between the machines (a local
disk, NFS, Lustre with ``flock``; not a bucket that is mounted). A lost race costs work done twice, never a wrong
result.
"""

import contextlib
import dataclasses
import json
import math
import os
import re
import urllib.parse
import uuid
from pathlib import Path
from time import monotonic
from typing import Any

import tensorstore as ts

from launch import heartbeats
from lm_mia.errors import UserError

_DRIVERS = ("file", "gcs", "s3")  # others have no conditional writes, or no other process sees them
_SUFFIX = ".lease"
_TRIAL_SECONDS = 30.0
_PATIENCE_SECONDS = 300.0  # in which tensorstore goes on trying
_QUICK = {
    "max_retries": 4,
    "initial_delay": "200ms",
    "max_delay": "2s",
}  # so that a person is told why


@dataclasses.dataclass(frozen=True)
class Lease:
    """One that was claimed: by this token its object is ours."""

    key: str
    token: str


class Leases:
    """The leases at a place, as one worker sees them."""

    def __init__(self, where: str, seconds: float, owner: str, store: ts.KvStore) -> None:
        self.where, self.seconds, self.owner = where, seconds, owner
        self._store = store
        self._seen: dict[str, tuple[bytes, float]] = {}  # others': key -> (object, first seen so)
        self._kept: dict[str, float] = {}  # ours: token -> last written for sure

    def claim(self, key: str) -> Lease | None:
        """A lease that nobody has, or that did not change for `seconds` while we looked; None if it is another's.

        Of any number that ask at once, one gets it. A lease can only be taken over by a second call, `seconds` after
        the first one that saw it as it is.

        Raises:
          UserError: if the place cannot be read or written.
        """
        asked = monotonic()
        found = self._read(key, _PATIENCE_SECONDS)
        if found.state == "missing":
            self._seen.pop(key, None)
        else:
            seen = self._seen.get(key)
            if seen is None or seen[0] != found.value:
                self._seen[key] = (found.value, monotonic())
                return None
            if asked - seen[1] < self.seconds:
                return None
        lease = Lease(key, uuid.uuid4().hex)
        begun = {"owner": self.owner, "since": heartbeats.now(), "beat": 0, "token": lease.token}
        return lease if self._put(lease, begun, found, _PATIENCE_SECONDS) else None

    def renew(self, lease: Lease) -> bool:
        """Whether the lease is still ours, for another `seconds` if the place could be written; ask every quarter.

        False if somebody else has it, if it is gone, or if the place could not be reached for so long that somebody may
        have it. Takes three quarters of `seconds` at most.
        """
        patience_seconds = self.seconds / 4
        try:
            found = self._read(lease.key, patience_seconds)
            record = _record(found.value)
            if record.get("token") != lease.token:
                return False
            return self._put(lease, {**record, "beat": record["beat"] + 1}, found, patience_seconds)
        except UserError:  # nobody takes over sooner
            return monotonic() - self._kept.get(lease.token, -math.inf) < self.seconds

    def release(self, lease: Lease) -> None:
        """Deletes a lease that is still ours. If the place cannot be reached it stays, and runs out."""
        with contextlib.suppress(UserError):
            found = self._read(lease.key, self.seconds / 4)
            if _record(found.value).get("token") == lease.token:
                gone = self._store.write(_name(lease.key), None, if_equal=found.stamp.generation)
                _answer(self.where, gone, self.seconds / 4)
        self._kept.pop(lease.token, None)

    def holders(self) -> dict[str, dict[str, Any]]:
        """Key -> ``owner``, ``since`` (UTC) and ``beat`` (renewals) of every lease, run out or not; None if damaged.

        Raises:
          UserError: if the place cannot be read.
        """
        listed = _answer(self.where, self._store.list(), _PATIENCE_SECONDS)
        names = [name.decode(errors="replace") for name in listed]
        keys = [_key(name) for name in names if name.endswith(_SUFFIX)]
        reads = {key: self._store.read(_name(key)) for key in sorted(keys)}
        found = {key: _answer(self.where, r, _PATIENCE_SECONDS) for key, r in reads.items()}
        return {
            key: {name: _record(r.value).get(name) for name in ("owner", "since", "beat")}
            for key, r in found.items()
            if r.state != "missing"
        }

    def _read(self, key: str, seconds: float) -> ts.KvStore.ReadResult:
        return _answer(self.where, self._store.read(_name(key)), seconds)

    def _put(
        self, lease: Lease, record: dict[str, Any], over: ts.KvStore.ReadResult, seconds: float
    ) -> bool:
        """Whether the lease is ours after it was written over what was found, if that was still there.

        What the write says is not enough: one that was tried again after its answer was lost is refused by itself.
        """
        asked = monotonic()
        value = json.dumps(record).encode()
        put = self._store.write(_name(lease.key), value, if_equal=over.stamp.generation)
        _answer(self.where, put, seconds)
        if _record(self._read(lease.key, seconds).value).get("token") != lease.token:
            return False
        self._kept[lease.token] = asked
        return True


def open_leases(where: str, seconds: float, owner: str) -> Leases:
    """The leases at a place, once it was seen that it can be written and that conditions of writes are kept.

    Args:
      where: a folder, which is made; gs://BUCKET/PATH or s3://BUCKET/PATH; or a kvstore spec of tensorstore in JSON,
        such as ``{"driver": "s3", "bucket": "b", "path": "leases", "endpoint": "https://..."}``.
      seconds: without a change, after which a lease is anybody's.
      owner: who we are, for people.

    Raises:
      UserError: if the place is none, or cannot be written.
    """
    spec = _spec(where)
    _try(where, spec)
    return Leases(where, seconds, owner, _open(where, spec))


def _spec(where: str) -> dict[str, Any]:
    """Tensorstore's specification of a place; UserError if it is none."""
    try:
        if where.lstrip().startswith("{"):
            spec = json.loads(where)
            ts.KvStore.Spec(spec)
        elif "://" in where:
            spec = ts.KvStore.Spec(where).to_json()
        else:
            spec = {"driver": "file", "path": os.path.abspath(Path(where).expanduser())}
    except json.JSONDecodeError as error:
        raise _problem(where, f"not JSON ({error.msg} at column {error.colno})") from error
    except ValueError as error:
        raise _problem(where, _said(error)) from error
    if spec["driver"] not in _DRIVERS:
        raise _problem(where, f"has no leases: the driver is {spec['driver']}")
    if (path := spec.get("path", "")) and not path.endswith("/"):
        spec["path"] = f"{path}/"
    return {"use_conditional_write": True, **spec} if spec["driver"] == "s3" else spec


def _open(where: str, spec: dict[str, Any], **retries: object) -> ts.KvStore:
    context = ts.Context({f"{name}_request_retries": r for name, r in retries.items()})
    try:
        opening = ts.KvStore.open(spec, context=context)
    except ValueError as error:
        raise _problem(where, _said(error)) from error
    return _answer(where, opening, _TRIAL_SECONDS)


def _try(where: str, spec: dict[str, Any]) -> None:
    """Writes an object, twice more where it must not, and deletes it; UserError if any of it goes wrong."""
    store, name = _open(where, spec, s3=_QUICK, gcs=_QUICK), f"trial-{uuid.uuid4().hex}"
    absent = _answer(where, store.read(name), _TRIAL_SECONDS).stamp.generation
    old = _answer(where, store.write(name, b"1"), _TRIAL_SECONDS).generation
    _answer(where, store.write(name, b"2"), _TRIAL_SECONDS)
    try:
        written = [
            _answer(where, store.write(name, b"3", if_equal=generation), _TRIAL_SECONDS).generation
            for generation in (absent, old)
        ]
    finally:
        _answer(where, store.write(name, None), _TRIAL_SECONDS)
    if any(written):
        raise _problem(where, "takes no heed of If-None-Match or If-Match, by which leases are had")


def _answer(where: str, future: Any, seconds: float) -> Any:
    """What tensorstore answers; UserError if it fails, or does not answer in time."""
    try:
        return future.result(timeout=seconds)
    except TimeoutError as error:
        future.cancel()
        raise _problem(where, f"no answer in {seconds:g} s") from error
    except (ValueError, IndexError, NotImplementedError) as error:  # whatever went wrong
        raise _problem(where, _said(error)) from error


def _problem(where: str, what: str) -> UserError:
    return UserError(
        f"--leases={' '.join(where.split())}: {what}; name a folder, gs://BUCKET/PATH, s3://BUCKET/PATH or a kvstore "
        "spec that this machine may read and write"
    )


def _said(error: Exception) -> str:
    """Tensorstore's words in one line, less its codes."""
    line = " ".join(str(error).replace(r"\x00", "/").split())
    return re.sub(r"^[A-Z_]+: |( \[[\w-]+='[^\]]*\])+$", "", line)


def _record(value: bytes) -> dict[str, Any]:
    """A lease's object; empty if it is none."""
    with contextlib.suppress(ValueError):
        record = json.loads(value)
        return record if isinstance(record, dict) else {}
    return {}


def _name(key: str) -> str:
    return urllib.parse.quote(key, safe="") + _SUFFIX


def _key(name: str) -> str:
    return urllib.parse.unquote(name.removesuffix(_SUFFIX))
