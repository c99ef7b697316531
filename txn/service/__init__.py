"""The Transactional service: both ends of its wire."""
