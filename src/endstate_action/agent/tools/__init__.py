"""What an agent can do, each tool with the effect class that settling relies on."""
