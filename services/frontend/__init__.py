"""The HTTP edge: OpenAI's API, advisories, sessions, the chat page; tokenizes and streams text."""
