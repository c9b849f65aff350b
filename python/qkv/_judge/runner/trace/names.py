"""What a variable's name says that it holds."""

from __future__ import annotations

import re


def role(name: str) -> str:
    """ "q" of q, Q, q_heads, queries; "cos" and "sin"; empty for a name that says nothing."""
    low = name.lower()
    for word, found in (("quer", "q"), ("key", "k"), ("val", "v"), ("cos", "cos"), ("sin", "sin")):
        if word in low:
            return found
    parts = re.split(r"[_\d]+", low)
    return next((part for part in parts if part in ("q", "k", "v")), "")
