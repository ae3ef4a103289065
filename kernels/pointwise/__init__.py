"""What stands between a decoder's products: norm, rotary embedding, gate (numba, CPU).

Each is one pass over memory where torch makes four to ten, and reckons in float32 whatever the
elements are.
"""
