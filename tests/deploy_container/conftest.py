"""Fixtures that are made once: the image, the files as data, and a model that loads in a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.bench.support import save_tiny_model
from tests.deploy_container.dockerfile import ROOT
from tests.deploy_container.image import Image


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return Image(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Readable by all, as a model on a host is."""
    directory = save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
    for path in (directory, *directory.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return directory


@pytest.fixture(scope="session")
def compose() -> dict[str, Any]:
    """docker-compose.yml, its anchors resolved."""
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded
