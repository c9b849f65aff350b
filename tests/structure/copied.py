"""No text of the five articles in this tree (docs/articles.md): no run of 24 tokens that one of them has.

    python check.py copied                      every text file against data/articles.bin
    python check.py copied --write ARTICLE...   writes data/articles.bin; the articles themselves are not here

A token is a word without digits, a number, a Han character or a sign. The file holds 8-byte hashes of 20 tokens, from every
fifth token of an article on: whatever 24 tokens are shared, they hold one of these. Rows of signs or of numbers are left out.
"""

import hashlib
import re
import struct
from functools import cache
from pathlib import Path

from tree import files, name_of

LENGTH, STEP = 20, 5
TOKEN = re.compile(r"[A-Za-z_]+|\d+(?:\.\d+)?|[一-鿿]|[^\s\w]")
HASHES = Path(__file__).resolve().parent / "data/articles.bin"
PRIME, BASE = (1 << 61) - 1, 0x1F3D5B79
ADDRESS = "sshipanoo.com/blog/ai/llm-roadmap"  # of an article, with its title in Chinese
ALLOWED = {"docs/articles.md": [ADDRESS], "NOTICE": [ADDRESS]}


@cache
def number(token):
    return int.from_bytes(hashlib.blake2b(token.encode(), digest_size=8).digest(), "little") % PRIME


def runs(tokens):
    """(index, hash) of each run: sum of number(token) BASE^k, from one run to the next."""
    first, value = pow(BASE, LENGTH - 1, PRIME), 0
    for at, token in enumerate(tokens):
        if at >= LENGTH:
            value -= number(tokens[at - LENGTH]) * first
        value = (value * BASE + number(token)) % PRIME
        if at >= LENGTH - 1:
            yield at - LENGTH + 1, value


def is_text(run):
    return len(set(run)) > LENGTH // 3 and sum(token[0].isalpha() for token in run) > LENGTH // 4


def write(articles):
    found = set()
    for article in articles:
        tokens = TOKEN.findall(Path(article).read_text(encoding="utf-8", errors="replace"))
        found |= {value for at, value in runs(tokens) if at % STEP == 0 and is_text(tokens[at : at + LENGTH])}
    HASHES.parent.mkdir(exist_ok=True)
    HASHES.write_bytes(struct.pack(f"<{len(found)}Q", *sorted(found)))
    return [], f"{len(found)} runs of {LENGTH} tokens"


def main(*arguments):
    if arguments[:1] == ("--write",):
        return write(arguments[1:])
    data = HASHES.read_bytes()
    known, problems, read = set(struct.unpack(f"<{len(data) // 8}Q", data)), [], 0
    for path in files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        read += 1
        tokens, last = TOKEN.findall(text), -LENGTH
        for at, value in runs(tokens):
            if value in known and at >= last + LENGTH:
                last = at
                run = "".join(tokens[at : at + LENGTH])
                if not any(allowed in run for allowed in ALLOWED.get(name_of(path), [])):
                    problems.append(f"{name_of(path)}: an article has this too: {' '.join(tokens[at : at + LENGTH])}")
    return problems, f"{read} text files, {len(known)} runs of {LENGTH} tokens of the articles"

