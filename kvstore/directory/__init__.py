"""What workers tell each other of the blocks that they hold and of flushes."""
