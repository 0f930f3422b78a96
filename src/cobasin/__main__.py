"""``python -m cobasin``: the command line."""

from cobasin.cli import main

if __name__ == "__main__":
    main()
