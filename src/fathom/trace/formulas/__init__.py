"""FLOP and bytes of torch's ops, one file per family; each has a table RULES from the op's name to its rule."""
