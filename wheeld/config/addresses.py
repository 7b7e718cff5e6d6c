"""Addresses to listen on: strings of the form `HOST:PORT`."""

from __future__ import annotations

from typing import Final

DEFAULT: Final = "127.0.0.1:9464"
"""9464 is OpenTelemetry's default port for Prometheus exporters."""
WEB: Final = "127.0.0.1:9465"


def parse(text: str) -> tuple[str, int]:
    """Host and port of `127.0.0.1:9464`, `localhost:9464` or `[::1]:9464`; port 0: any free one.
    `ValueError`: it is not an address."""
    host, colon, port = text.rpartition(":")
    in_brackets = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if in_brackets else host
    is_port = port.isascii() and port.isdigit() and int(port) <= 65535
    if not (host and colon and is_port) or (":" in host and not in_brackets) or " " in host:
        raise ValueError(f"expected HOST:PORT, such as {DEFAULT} or [::1]:9464")
    return host, int(port)


def text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
