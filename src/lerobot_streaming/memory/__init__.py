"""Memory that is used again: fresh pages cost more than the pixels that go into them."""
