"""One file per command, each with a function `command`; torch is imported only inside one that needs it."""
