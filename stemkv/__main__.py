"""``python -m stemkv`` runs the command line."""

from stemkv.engine.cli import main

if __name__ == "__main__":
    main()
