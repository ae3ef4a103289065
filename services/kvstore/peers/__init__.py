"""How the kvstores of different hosts stream KV pages to each other.

`server.py` sends what is stored here, `client.py` fetches into the arena. They move bytes and check
them; the core decides which page comes from which host.
"""
