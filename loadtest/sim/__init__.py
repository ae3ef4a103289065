"""What a simulation is made of: event loops whose clocks jump, a network, Redis, disks, peers and
an object store with faults. `services` has the production services on it; `loadtest.world` puts a
deployment together.
"""
