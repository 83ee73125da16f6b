"""Host and Origin checks of a server without keys: web pages must not reach it through a user's browser."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from app.api.errors import ApiError, forbidden
from app.settings import Settings

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})  # methods that change nothing


class Hosts:
    """Which requests are answered without a key.

    A page of another site can make the browser send requests to a server on the user's machine. It either uses the server's
    address (then Origin names the page) or points its own domain at that address, known as DNS rebinding (then Host names the
    page's domain). An IP address in Host is allowed: it cannot be rebound.
    """

    def __init__(self, allowed: Collection[str], bound: str, origins: Collection[str] = ()) -> None:
        """allowed: host names besides loopback, or *. bound: the address listened on. origins: allowed origins, or *."""
        self._allowed = frozenset(allowed)
        self._origins = frozenset(origins)
        self._checked = "*" not in allowed and (bool(allowed) or is_loopback(bound))

    @classmethod
    def of(cls, settings: Settings) -> Hosts:
        return cls(settings.allowed_hosts, settings.host, settings.cors_origins)

    def check(self, method: str, headers: Mapping[str, str]) -> None:
        """Raises ApiError 403 for a request that names another host, or comes from a page of another site."""
        if not self._checked:
            return
        host = _name(headers["host"]) if "host" in headers else "localhost"  # browsers always send one
        if _address(host) is None and not self._known(host):
            raise _not_allowed("Host")
        origin = headers.get("origin")
        if origin is not None and method not in SAFE and not self._may_ask(origin, host):
            raise _not_allowed("Origin")

    def _may_ask(self, origin: str, host: str) -> bool:
        if "*" in self._origins or origin in self._origins:
            return True
        try:
            parts = urlsplit(origin)
            name = parts.hostname or ""
        except ValueError:
            return False
        if parts.scheme not in ("", "http", "https"):  # installed programs and extensions: no site has such an origin
            return True
        return name != "" and (name == host or self._known(name))

    def _known(self, name: str) -> bool:
        _, dot, parent = name.partition(".")
        return is_loopback(name) or name in self._allowed or (dot != "" and f"*.{parent}" in self._allowed)


def is_loopback(name: str) -> bool:
    """Whether a host name or address always means this machine, whatever DNS says."""
    address = _address(name.strip("[]"))
    if address is None:
        return name == "localhost" or name.endswith(".localhost")
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _name(host: str) -> str:
    """`Example.com:80` -> `example.com`, `[::1]:80` -> `::1`."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


def _not_allowed(header: str) -> ApiError:
    if header == "Host":
        wanted = "a name of this server: localhost, an address, or one that allowed_hosts (RACER_ALLOWED_HOSTS) lists"
    else:
        wanted = "a page of this server, or one that cors_origins (RACER_CORS_ORIGINS) or allowed_hosts lists"
    return forbidden(f"This server has no API key, so the header {header} must name {wanted}.")
