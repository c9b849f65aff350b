"""Each file begins registered as transformers_models.py does it, whatever the file before it left."""

from __future__ import annotations

import sys

import pytest
import qkv.torch


@pytest.fixture(autouse=True, scope="module")
def as_registered() -> None:
    if "transformers_models" in sys.modules:
        qkv.transformers.unregister()
        qkv.transformers.register()
    assert not qkv.torch.is_enabled()
