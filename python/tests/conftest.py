"""The browser that the tests of the explorer's page share: one for all of them, its complaints checked at the end of each test."""

from collections.abc import Iterator

import pytest
from support_explorer import Browser, browsers


@pytest.fixture(scope="session")
def started() -> Iterator[Browser]:
    yield from browsers()


@pytest.fixture
def browser(started: Browser) -> Iterator[Browser]:
    started.asked.clear()
    started.said.clear()
    yield started
    started.check()
