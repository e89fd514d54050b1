"""The page of look in a real browser."""
