"""One file per energy meter, found automatically and absent where absent."""
