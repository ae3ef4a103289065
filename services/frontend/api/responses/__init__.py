"""``/v1/responses``: OpenAI's later API for chats."""
