"""`python -m recovery` is the command `txn`."""

from recovery.commands import main

main()
