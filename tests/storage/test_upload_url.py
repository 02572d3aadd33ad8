"""URLs to upload to: what is wrong with one is said before anything is written."""

from __future__ import annotations

import sys
import uuid
import warnings
from pathlib import Path

import pytest

from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, MissingExtraError
from rl_training.storage.upload import Remote, check_upload

pytest.importorskip("fsspec")


@pytest.mark.parametrize("url", ["bucket/folder", "s3:bucket", "s3://", "file:///"])
def test_an_upload_url_must_be_a_url(url: str) -> None:
    with pytest.raises(ConfigError, match="upload_url must be a URL such as s3://bucket/folder"):
        TrainConfig(algo="bc", upload_url=url)


def test_a_url_with_a_password_is_refused_without_repeating_it() -> None:
    with pytest.raises(ConfigError, match="must not hold a password") as caught:
        TrainConfig(algo="bc", upload_url="sftp://me:secret@host/folder")

    assert "secret" not in str(caught.value)


def test_a_missing_library_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"class": "lost_library.LostFiles", "err": "Install lost_library"}
    monkeypatch.setitem(sys.modules["fsspec.registry"].known_implementations, "lost", known)

    with pytest.raises(MissingExtraError, match=r"lost://a needs the package 'lost_library'.*\[upload\]' lost_library"):
        Remote("lost://a")


def test_without_fsspec_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)

    with pytest.raises(
        MissingExtraError, match=r"needs the package 'fsspec'; install it with: .*rl-training\[upload\]"
    ):
        check_upload(TrainConfig(algo="bc", upload_url="s3://bucket/folder"))


def test_the_place_is_tried_out_and_left_as_it_was(tmp_path: Path) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for place in (f"{url}/folder", (tmp_path / "shared").as_uri()):
            check_upload(TrainConfig(algo="bc", upload_url=place))

    assert not Remote(f"{url}/folder").files.find(Remote(f"{url}/folder").root)
    assert not list((tmp_path / "shared").iterdir())
