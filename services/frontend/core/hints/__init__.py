"""How senders of useless advisories are slowed down."""
