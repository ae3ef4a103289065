"""Which requests are traced, and the dashboard's view."""
