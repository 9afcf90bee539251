"""The models an agent can ask, each behind the `Provider` protocol."""
