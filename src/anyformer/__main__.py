"""`python -m anyformer`: the command line, for where the script `anyformer` is not on the path."""

from anyformer.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
