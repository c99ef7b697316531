"""A queue of locks in ZooKeeper."""
