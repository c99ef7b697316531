"""The user's interface: the engine, its blocks, and how to open one."""
