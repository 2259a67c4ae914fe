"""The state folder: secrets are made once, whole and private."""

import hashlib
import logging
import multiprocessing
import stat
from pathlib import Path

import pytest

from stemkv.engine.config import ConfigError
from stemkv.engine.state import ADMIN_KEY_VARIABLE, StateFolder


def mode_of(path: Path) -> int:
    """Return the permission bits."""
    return stat.S_IMODE(path.stat().st_mode)


def test_secret_is_made_once_and_private(tmp_path: Path) -> None:
    """The secret is 32 bytes, the same at every call, in a 0600 file of a 0700 folder."""
    folder = StateFolder(tmp_path / "a" / "state")
    secret = folder.deployment_secret()
    assert len(secret) == 32
    assert StateFolder(tmp_path / "a" / "state").deployment_secret() == secret
    assert StateFolder(tmp_path / "b").deployment_secret() != secret
    assert mode_of(folder.path) == 0o700
    assert mode_of(folder.secret_path) == 0o600
    assert [p.name for p in folder.path.iterdir()] == ["deployment.secret"]


def test_default_folder_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a path, the user's state folder is taken."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert StateFolder().path == tmp_path / "stemkv"


def read_secret(path: Path) -> tuple[bytes, str]:
    """Read both secrets in another process."""
    folder = StateFolder(path)
    return folder.deployment_secret(), folder.admin_key({}).text


def test_processes_that_race_agree(tmp_path: Path) -> None:
    """Processes that create the folder at the same time all get the same secret and key."""
    context = multiprocessing.get_context("fork")
    with context.Pool(8) as pool:
        results = pool.map(read_secret, [tmp_path / "state"] * 64, chunksize=1)
    assert len(set(results)) == 1


def test_damaged_secret_is_refused(tmp_path: Path) -> None:
    """A secret file of another length is an error that names it, never a silent new secret."""
    folder = StateFolder(tmp_path)
    folder.secret_path.write_bytes(b"short")
    with pytest.raises(ConfigError, match=r"deployment\.secret: 5 bytes"):
        folder.deployment_secret()


def test_unusable_folder_is_refused(tmp_path: Path) -> None:
    """A path that is a file is an error that names the setting and the path."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"state-dir: .*file"):
        StateFolder(tmp_path / "file")


def test_admin_key_from_file(tmp_path: Path) -> None:
    """The admin key is made once, private, matches itself only, and does not show in its repr."""
    folder = StateFolder(tmp_path / "state")
    key = folder.admin_key({})
    assert folder.admin_key({}) == key
    assert key.matches(key.text)
    assert not key.matches(key.text[:-1])
    assert not key.matches("schlüssel")
    assert key.sha256 == hashlib.sha256(key.text.encode()).hexdigest()
    assert mode_of(folder.admin_key_path) == 0o600
    assert key.source == str(folder.admin_key_path)
    assert key.text not in repr(key)


def test_admin_key_from_environment(tmp_path: Path) -> None:
    """The environment's key goes before the file's, and no file is made for it."""
    folder = StateFolder(tmp_path)
    key = folder.admin_key({ADMIN_KEY_VARIABLE: "0123456789abcdef"})
    assert key.matches("0123456789abcdef")
    assert key.source == ADMIN_KEY_VARIABLE
    assert not folder.admin_key_path.exists()


@pytest.mark.parametrize("value", ["", "   ", "short", "with a space in the middle", "ä" * 20])
def test_weak_admin_key_is_refused(value: str, tmp_path: Path) -> None:
    """A key that is empty, short or not plain ASCII is refused, by its length alone."""
    with pytest.raises(ConfigError, match=ADMIN_KEY_VARIABLE) as caught:
        StateFolder(tmp_path).admin_key({ADMIN_KEY_VARIABLE: value})
    assert not value.strip() or value not in str(caught.value)


def test_open_permissions_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Files and folders that others can read are used, and warned of."""
    folder = StateFolder(tmp_path / "state")
    folder.deployment_secret()
    folder.secret_path.chmod(0o644)
    folder.path.chmod(0o755)
    with caplog.at_level(logging.WARNING):
        StateFolder(folder.path).deployment_secret()
    assert len([r for r in caplog.records if "chmod" in r.getMessage()]) == 2
