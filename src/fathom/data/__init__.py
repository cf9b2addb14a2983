"""One file per data set: each reads its owner's format and can synthesise a learnable stand-in."""
