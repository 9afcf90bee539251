"""Floor 2: speaks GitHub. What GitHub says is parsed here, what it is told is written here."""
