"""One file per engine: a way to execute a step."""
