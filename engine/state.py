"""The state folder: the deployment's secret, the admin key, the tenants' database.

Whoever can read the folder is the operator: it is created with mode 0700, its files with 0600.
"""

import hashlib
import hmac
import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from platformdirs import user_state_dir

from stemkv.engine.config import ConfigError

logger = logging.getLogger(__name__)

ADMIN_KEY_VARIABLE = "STEMKV_ADMIN_KEY"
ADMIN_KEY_FILE = "admin.key"
SECRET_BYTES = 32
SHORTEST_ADMIN_KEY = 16

_GROUP_AND_OTHERS = 0o077


@dataclass(frozen=True, slots=True)
class AdminKey:
    """The operator's key.

    text: the key itself, for the command line's own calls; never logged. source: where it comes
    from, to tell the operator.
    """

    text: str = field(repr=False)
    source: str

    @property
    def sha256(self) -> str:
        """64 hex digits, all that the service needs to know."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def matches(self, candidate: str) -> bool:
        """Whether a client's key is this one, in constant time."""
        digest = hashlib.sha256(candidate.encode()).hexdigest()
        return hmac.compare_digest(digest, self.sha256)


def state_path(path: Path | None = None) -> Path:
    """Return the folder that is told, or the user's; makes nothing."""
    return path if path is not None else Path(user_state_dir("stemkv"))


class StateFolder:
    """A folder of files that outlive the process; several processes may share it.

    path: None takes the user's state folder. Raises ConfigError when it cannot be made.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = state_path(path)
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = self.path.stat().st_mode
        except OSError as error:
            raise ConfigError(
                f"state-dir: {self.path} cannot be used: {error.strerror}; name another folder with"
                " --state-dir or STEMKV_STATE_DIR"
            ) from error
        if mode & _GROUP_AND_OTHERS:
            logger.warning("state folder %s is open to other users; chmod 700 it", self.path)

    @property
    def tenants_path(self) -> Path:
        """Where `SqliteTenantStore` keeps its database."""
        return self.path / "tenants.sqlite3"

    @property
    def secret_path(self) -> Path:
        """Where the deployment's secret lies."""
        return self.path / "deployment.secret"

    @property
    def admin_key_path(self) -> Path:
        """Where the admin key lies, unless the environment gives one."""
        return self.path / ADMIN_KEY_FILE

    def deployment_secret(self) -> bytes:
        """Return the deployment's 32 random bytes, made at the first call by any process.

        Raises ConfigError when the file is not what was written.
        """
        content = self._read_or_create(self.secret_path, secrets.token_bytes(SECRET_BYTES))
        if len(content) != SECRET_BYTES:
            raise ConfigError(
                f"{self.secret_path}: {len(content)} bytes are not the {SECRET_BYTES} of a secret;"
                " restore it, or delete it to begin with an empty cache"
            )
        return content

    def admin_key(self, environ: Mapping[str, str] | None = None) -> AdminKey:
        """Return the admin key: the environment's, else the file's, made at the first call.

        Raises ConfigError when it is too short to be a key. environ: None takes the process's.
        """
        given = (os.environ if environ is None else environ).get(ADMIN_KEY_VARIABLE)
        if given is not None:
            return AdminKey(_checked(given.strip(), ADMIN_KEY_VARIABLE), ADMIN_KEY_VARIABLE)
        fresh = f"sk-stem-admin-{secrets.token_urlsafe(32)}\n"
        content = self._read_or_create(self.admin_key_path, fresh.encode())
        source = str(self.admin_key_path)
        try:
            return AdminKey(_checked(content.decode("ascii").strip(), source), source)
        except UnicodeDecodeError as error:
            raise ConfigError(f"{source}: the key is not ASCII text") from error

    def _read_or_create(self, path: Path, fresh: bytes) -> bytes:
        """Return the file's content, or that of the process that was first to create it."""
        try:
            if not path.exists():
                _create_whole(path, fresh)
            if path.stat().st_mode & _GROUP_AND_OTHERS:
                logger.warning("%s can be read by other users; chmod 600 it", path)
            return path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read or made: {error.strerror}") from error


def _create_whole(path: Path, content: bytes) -> None:
    """Create a file that no one ever sees half-written, unless another was first."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            # unlike a rename, a link does not replace what another process made meanwhile
            path.hardlink_to(draft)
        except FileExistsError:
            return
    finally:
        draft.unlink()
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _checked(key: str, source: str) -> str:
    if len(key) < SHORTEST_ADMIN_KEY or not key.isascii() or any(c.isspace() for c in key):
        raise ConfigError(
            f"{source}: the admin key has {len(key)} characters; it needs at least"
            f" {SHORTEST_ADMIN_KEY} of ASCII without spaces"
        )
    return key
