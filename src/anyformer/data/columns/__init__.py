"""Columns of a table: their kinds, how cells are converted, and what is fitted on the training rows."""
