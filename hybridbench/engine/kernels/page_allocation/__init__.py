"""Find the slots of new tokens within the pages allocated for them."""
