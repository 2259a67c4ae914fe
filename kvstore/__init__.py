"""Which block holds what, for whom, and may it be reused: bookkeeping, no tensors, no torch."""
