"""The commands of the command line, one file per group; heavy imports happen when a command runs."""
