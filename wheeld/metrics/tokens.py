"""The tokens of the page: one to read, one to cancel timers, too; each is the line of a file.

A browser adds no token by itself, as it does cookies: a page of another site cannot use the one
that somebody typed here. Only the name of the file is in command lines, settings and messages.
"""

from __future__ import annotations

import hmac
import os
import re
import stat
from typing import Final, NamedTuple

from wheeld.metrics.server import Refused, Request
from wheeld_core.errors import WheelError

MADE: Final = "(umask 077; openssl rand -hex 32 >{})"
_FORM: Final = re.compile(rb"[A-Za-z0-9._~+/=-]{32,256}")
_LONGEST_FILE: Final = 1024
_OTHERS: Final = stat.S_IRWXO | stat.S_IWGRP


class Rights(NamedTuple):
    read: bool
    cancel: bool


def read_token(option: str, path: str | None) -> bytes | None:
    """The token in a file; None: no file is given. `WheelError`: there is none, or others could
    read or replace it."""
    if path is None:
        return None
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise WheelError(f"{option} {path}: expected a file with a token")
            found = file.read(_LONGEST_FILE)
    except OSError as error:
        made = f": {MADE.format(path)} makes it" if isinstance(error, FileNotFoundError) else ""
        raise WheelError(f"{option} {path}: {error.strerror}{made}") from error
    if mode & _OTHERS:
        shown = f"{stat.S_IMODE(mode):o}"
        raise WheelError(
            f"{option} {path}: its mode is {shown}, so others could read or replace the token: "
            f"chmod 600 {path}"
        )
    token = found.strip()
    if not _FORM.fullmatch(token):
        raise WheelError(
            f"{option} {path}: expected one line of 32 to 256 letters, digits and . _ ~ + / = -, "
            f"as {MADE.format(path)} makes it"
        )
    return token


class Tokens:
    """`None`: reading needs no token; nobody may cancel."""

    def __init__(self, read: bytes | None = None, admin: bytes | None = None) -> None:
        self._read, self._admin = read, admin

    @property
    def most(self) -> Rights:
        """The rights of the best token."""
        return Rights(True, self._admin is not None)

    def rights(self, request: Request) -> Rights:
        """The rights of the request's token. `Refused`: it is not one of ours."""
        shown = [
            token.strip().encode("latin-1", "replace")
            for kind, _, token in (
                each.partition(" ") for each in request.headers.get_all("Authorization", [])
            )
            if kind.lower() == "bearer"
        ]
        if not shown or (self._read is None and self._admin is None):
            return Rights(self._read is None, False)
        may_cancel, may_read = (_same(shown, ours) for ours in (self._admin, self._read))
        if not (may_cancel or may_read):
            raise unauthorized()
        return Rights(True, may_cancel)


def unauthorized() -> Refused:
    return Refused("401 Unauthorized", "WWW-Authenticate: Bearer")


def _same(shown: list[bytes], ours: bytes | None) -> bool:
    """In a time that does not depend on where they differ."""
    return ours is not None and len(shown) == 1 and hmac.compare_digest(shown[0], ours)
