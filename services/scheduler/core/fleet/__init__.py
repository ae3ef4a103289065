"""Who is there to run turns: workers, what they hold, and how fast they are."""
