"""The page at /: app/web/index.html where it exists, else a short one that says what runs here and how to ask it."""

from __future__ import annotations

import html
import json
from pathlib import Path
from string import Template

PAGE_FILE = Path(__file__).parent.parent / "web" / "index.html"

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>racer-csd: ${model}</title>
<style>
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 3rem auto; padding: 0 1rem; }
pre { padding: 1rem; overflow-x: auto; border: 1px solid #8886; border-radius: 6px; }
</style>
</head>
<body>
<h1>${model}</h1>
<p>This server speaks the OpenAI protocol and decodes speculatively with RACER.</p>
<ul>
<li><a href="/docs">API reference</a></li>
<li><a href="/metrics">Metrics</a></li>
<li><a href="/ready">State</a></li>
</ul>
<pre id="curl">curl ${origin}/v1/chat/completions \\
  -H 'Content-Type: application/json' \\
  -d '${body}'</pre>
<script>
const pre = document.getElementById("curl");
pre.textContent = pre.textContent.replace("http://127.0.0.1:8000", location.origin);
</script>
</body>
</html>
""")


def render_page(model: str) -> str:
    """HTML that asks no other host for anything."""
    if PAGE_FILE.is_file():
        return PAGE_FILE.read_text(encoding="utf-8")
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello!"}]})
    filled = {"model": model, "origin": "http://127.0.0.1:8000", "body": body}
    return _PAGE.substitute({name: html.escape(value) for name, value in filled.items()})
