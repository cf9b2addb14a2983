"""A graph convolutional network on Zachary's karate club, as somebody else's package would bring it to Fathom."""
