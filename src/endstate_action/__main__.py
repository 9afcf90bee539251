"""`python -m endstate_action` is the `endstate` command."""

from endstate_action.cli import main

main()
