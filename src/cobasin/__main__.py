"""``python -m cobasin``: the command line."""

from cobasin.cli import main

main()
