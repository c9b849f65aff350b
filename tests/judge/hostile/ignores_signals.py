"""Ignores every signal that can be ignored, then never returns."""

import signal


def sdpa(q, k, v, mask=None):
    for number in signal.valid_signals():
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    while True:
        try:
            signal.pause()
        except BaseException:
            pass


EXPECTED = {"sdpa": "failed"}
