"""Floor 2: remembers. Every write is all-or-nothing."""
