"""Comparing with a reference system: which layer of a suspect device explains how its values differ."""
