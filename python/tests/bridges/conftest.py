"""Each file begins registered as support_transformers.py does it, whatever the file before it left."""

import sys

import pytest
import qkv.torch


@pytest.fixture(autouse=True, scope="module")
def as_registered() -> None:
    if "support_transformers" in sys.modules:
        qkv.transformers.unregister()
        qkv.transformers.register()
    assert not qkv.torch.is_enabled()
