"""The Transactional service: one wire, both ends."""
