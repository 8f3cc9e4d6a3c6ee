"""Historic bugs of hybrid engines, injected from outside to test that they are detected."""
