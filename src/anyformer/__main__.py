"""`python -m anyformer`: the command line, if the script `anyformer` is not on the path."""

from anyformer.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
