"""What two services both need.

The files of this folder depend on none of its folders; `wire` is what crosses a process border,
`runtime` what a process runs on, `bus` the connection to NATS, `service` starts a process.
"""
