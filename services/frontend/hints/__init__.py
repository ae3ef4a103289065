"""Advisories: admitted, and passed to the tracker."""
