"""``python -m stemkv`` runs the command line; `stemkv` is the same."""

import os
import sys
from pathlib import Path

from stemkv.engine.compiled import home_folder, keep_compiled
from stemkv.engine.config import ConfigError
from stemkv.engine.model_fetch import cache_root


def main() -> None:
    """Run the command line and exit."""
    try:
        keep_compiled(os.environ, Path(__file__).parent, home_folder(), cache_root())
    except (ConfigError, RuntimeError) as error:
        print(f"stemkv: {error}", file=sys.stderr)
        sys.exit(2)
    # numba looks for its folder as soon as a module of ours is imported that has compiled loops
    from stemkv.engine.cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()
