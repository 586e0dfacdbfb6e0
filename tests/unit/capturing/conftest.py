"""What the tests of this room share."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _quick(one_thread: None) -> None:
    """All of these are tiny."""
