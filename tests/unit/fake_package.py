"""Stands in for the published package beside `scripts.dev.benchmark`: every answer is half a second."""

from __future__ import annotations

import json
import sys

for line in sys.stdin:
    asked = json.loads(line)
    answer: dict[str, float | str] = {"seconds": 0.5, "tokens": 100, "peak": 2**30}
    if asked["do"] == "render" and asked["steps"] != 10:
        answer = {"error": "not the package's default"}
    print(json.dumps(answer), flush=True)
