"""Exit code 0 when the server in this container answers /ready with 200, else 1 and the reason."""

from __future__ import annotations

import contextlib
import http.client
import os
import sys
from pathlib import Path


def main() -> int:
    """Ask over loopback, past any proxy that the environment sets."""
    connection = http.client.HTTPConnection("127.0.0.1", int(os.environ.get("RACER_PORT") or 8000), timeout=4.0)
    try:
        connection.request("GET", "/ready", headers=authorization())
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        sys.stdout.write(f"no answer: {error}\n")
        return 1
    sys.stdout.write(f"/ready: {status}\n")
    return 0 if status == 200 else 1


def authorization() -> dict[str, str]:
    """The first key, for a server whose RACER_OPEN_ROUTES do not include /ready."""
    keys = os.environ.get("RACER_API_KEYS", "").split(",")
    if path := os.environ.get("RACER_API_KEYS_FILE"):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            keys += Path(path).read_text("utf-8-sig").splitlines()
    found = (key.strip() for key in keys)
    key = next((key for key in found if key and not key.startswith("#")), None)
    return {} if key is None else {"Authorization": f"Bearer {key}"}


if __name__ == "__main__":
    sys.exit(main())
