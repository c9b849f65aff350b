"""The runner is on the path before any test imports it."""

import support_judge  # noqa: F401
