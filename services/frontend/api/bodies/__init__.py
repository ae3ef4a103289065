"""Request bodies: their classes, the table of their fields, and what OpenAPI says of them."""
