"""Limits of a turn's images: checked at the edge, and again by the worker."""

IMAGES_MAX = 16
IMAGE_BYTES_MAX = 4_000_000  # of all files of a turn: in base64 they fit one message of NATS
IMAGE_PIXELS_MAX = 40_000_000  # of all together
