"""Which directory a worker gets."""

from stemkv.kvstore.directory.memory import MemoryDirectory
from stemkv.kvstore.directory.protocol import Directory
from stemkv.kvstore.directory.redis_directory import RedisDirectory


def make_directory(
    redis_url: str | None,
    *,
    deployment: str,
    secret: bytes,
    fingerprint: str,
    lease_seconds: float,
) -> Directory:
    """Make the directory in Redis if there is an address, else one in this process.

    Raises DirectoryMismatch, ValueError (redis_url).
    """
    if redis_url is None:
        return MemoryDirectory()
    return RedisDirectory(
        redis_url,
        deployment=deployment,
        secret=secret,
        fingerprint=fingerprint,
        lease_seconds=lease_seconds,
    )
