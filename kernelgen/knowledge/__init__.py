"""What runs have measured, kept between them: a store in the cache, its rows, and what they say together."""
