"""One file per way to limit power or clocks, found automatically and absent where absent."""
