"""What commits, what recovers, and what is stored of it; the argument is in docs/protocol.md."""
