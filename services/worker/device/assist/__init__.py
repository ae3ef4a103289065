"""What adapters add while their pages are still on the way to the device, computed by helper
processes from the host's arena (CaraServe, section 4).
"""
