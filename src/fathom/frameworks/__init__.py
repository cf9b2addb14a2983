"""The same networks in several frameworks: equal weights, equal inputs, checked outputs, threads set for each."""
