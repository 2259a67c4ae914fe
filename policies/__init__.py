"""One question each: who is evicted, who runs next."""
