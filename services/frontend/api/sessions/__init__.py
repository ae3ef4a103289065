"""Sessions: advisories, records, deletion."""
