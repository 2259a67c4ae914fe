"""Collects these modules only in the process that `run_isolated` made for them."""

import os

collect_ignore_glob = [] if "STEMKV_ISOLATED" in os.environ else ["*"]
