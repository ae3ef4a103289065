"""Which models and workers go to which sub-cluster (deferred batch scheduling, section 4.4 and
appendix A).
"""
