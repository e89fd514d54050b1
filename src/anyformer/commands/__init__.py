"""The verbs of the command line, a file for each group; they import what they need when they run."""
