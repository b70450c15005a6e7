"""A Hub on loopback for the tests, and repositories to put on it."""
