"""The properties that the store must have, as code that both the tests and `stemkv audit` run.

Nothing else of stemkv imports this package: it needs hypothesis (`pip install 'stemkv[audit]'`),
which the product doesn't.
"""
