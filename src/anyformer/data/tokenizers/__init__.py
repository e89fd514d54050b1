"""Tokenizers: trained here or opened from a folder, with their files, formats and limits."""
