"""Tiny checkpoints that all tests of the port share."""

from __future__ import annotations

import pytest

from vlm.builders import Pair, build, tied_config, untied_config


@pytest.fixture(scope="session")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Untied embeddings, full attention at regular depths."""
    return build(tmp_path_factory.mktemp("untied"), untied_config(), seed=11)


@pytest.fixture(scope="session")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Tied embeddings, full attention at irregular depths."""
    return build(tmp_path_factory.mktemp("tied"), tied_config(), seed=12)
