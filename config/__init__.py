"""Options and errors that every other package may know; it knows none of them."""
