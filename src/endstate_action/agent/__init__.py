"""Floor 3: decides and acts."""
